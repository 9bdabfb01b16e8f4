// The states of state spaces in chunks: what segments make of zeros, the states before and after segments, and those
// before chunks (space_chunks.h).
#include "ops/cuda/hopper/space_chunks.h"

namespace so::hopper {
namespace {

using namespace kernel;

// What a step needs of a chunk: the rows that the state is made of.
struct WalkTiles {
  bf16_t keys[side * head_dim], values[part_elements];
};
constexpr int walk_stages = 3;
struct WalkShared {
  WalkTiles tiles[walk_stages];
  bf16_t tile[part_elements];
  SegmentScales scales;
};

// A block goes through a segment of a head. Forward a state becomes exp(G') S + B^T (s exp(G' - G) X), in REVERSE its
// gradient exp(G') dS + C^T (exp(G) dout). KEEP, forward: begins with the segment's state, and writes that before each
// chunk; else begins with zeros, and writes what becomes of them to the place of the segment that comes next.
template <bool REVERSE, bool KEEP>
__global__ void __launch_bounds__(group_threads, 2) space_walk_kernel(SpaceArguments a, SpaceArrays arrays) {
  static_assert(!(REVERSE && KEEP), "space_output.cu keeps the gradients of chunks' states");
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<WalkShared*>(memory);
  const int head = static_cast<int>(blockIdx.x) % a.heads, group = head / (a.heads / a.groups);
  const SpaceSegment segment(a, static_cast<int>(blockIdx.x) / a.heads);
  if (segment.rows <= 0) return;
  const int next_segment = REVERSE ? segment.number - 1 : segment.number + 1;
  if (KEEP ? segment.document_rows <= side : next_segment < 0 || next_segment >= segment.of_document()) return;
  const int chunks = segment.chunks();
  const auto chunk_of = [&](int step) { return REVERSE ? chunks - 1 - step : step; };
  const auto fetch = [&](WalkTiles& to, int chunk) {
    const int row = segment.row(chunk), count = segment.count(chunk);
    const HeadRows &keys = REVERSE ? a.c : a.b, &values = REVERSE ? a.dout : a.x;
    copy_tile<head_dim, group_threads>(to.keys, rows_of(keys, row, group), keys.width, count);
    copy_tile<side, group_threads>(to.values, rows_of(values, row, head), values.width, count);
  };
#pragma unroll
  for (int step = 0; step < walk_stages - 1; ++step) {
    if (step < chunks) fetch(shared.tiles[step], chunk_of(step));
    commit_copies();
  }
  shared.scales.find(a, segment, head);

  Sums state[head_parts];
  clear(state);
  if (!KEEP && !REVERSE && a.state && segment.number == 0) {  // the state that is continued is that before the segment
    for_each_of_state(state, a.state + static_cast<std::int64_t>(head) * space_elements,
                      [](float& x, float& stored) { x = stored; });
    write_state(state, arrays.segments + segment.place(a, 0, head) * space_elements);
    clear(state);
  }
  if (KEEP && segment.number > 0)
    read_state(state, arrays.segments + segment.place(a, segment.number, head) * space_elements);

  int stage = 0;
  float sum = 0;  // of logarithms of decays
  for (int step = 0; step < chunks; ++step) {
    const int chunk = chunk_of(step);
    wait_copies<walk_stages - 2>();
    publish();
    __syncthreads();
    if (step + walk_stages - 1 < chunks)
      fetch(shared.tiles[stage > 0 ? stage - 1 : walk_stages - 1], chunk_of(step + walk_stages - 1));
    commit_copies();
    const WalkTiles& tiles = shared.tiles[stage];
    const float* const total = shared.scales.total[chunk];
    const float* const steps = shared.scales.step[chunk];
    const float whole = shared.scales.of_chunk(chunk);
    if constexpr (KEEP) {
      const std::int64_t at = chunk_state(a, segment.document, segment.number * segment_chunks + chunk, head);
#pragma unroll
      for (int part = 0; part < head_parts; ++part) {
        Operand before;
        to_operand(before, state[part]);
        write_rows(arrays.states + at + part * side, head_dim, shared.tile, before);
      }
    }
    Operand given, kept;
    load_transposed(given, tiles.values);
    scale_columns(kept, given, [&](int column) {
      return REVERSE ? __expf(total[column]) : steps[column] * __expf(whole - total[column]);
    });
    scale(state, __expf(whole));
    sum += whole;
    settled(kept);
    begin_products();
    add_products<head_dim>(state, kept, tiles.keys);
    commit_products();
    wait_products<0>();
#pragma unroll
    for (int part = 0; part < head_parts; ++part) settled(state[part]);
    stage = stage + 1 < walk_stages ? stage + 1 : 0;
  }
  if constexpr (!KEEP) {
    write_state(state, arrays.segments + segment.place(a, next_segment, head) * space_elements);
    if (threadIdx.x == 0) arrays.decays[segment.place(a, segment.number, head)] = __expf(sum);
  }
}

constexpr int scan_threads = 256, scan_parts = space_elements / 4 / scan_threads;
constexpr int scan_batch = 8;  // segments on their way from memory at a time
constexpr int scan_documents = 64;

// Documents of several segments: what each has made of zeros becomes the state that the next begins with. Grid: x over
// heads and parts of a state, y over documents in turn.
template <bool REVERSE>
__global__ void __launch_bounds__(scan_threads) space_scan_kernel(SpaceArguments a, SpaceArrays arrays) {
  const int head = static_cast<int>(blockIdx.x) / scan_parts;
  const int element = static_cast<int>(blockIdx.x) % scan_parts * scan_threads + static_cast<int>(threadIdx.x);
  for (int document = static_cast<int>(blockIdx.y); document < a.documents; document += static_cast<int>(gridDim.y)) {
    const int begin = a.starts[document], rows = a.starts[document + 1] - begin;
    const int segments = (rows + static_cast<int>(state_space_segment) - 1) / static_cast<int>(state_space_segment);
    if (segments < 2) continue;
    const int first = begin / static_cast<int>(state_space_rows_of_segment);
    const auto decay_of = [&](int segment) {
      return arrays.decays[static_cast<std::int64_t>(first + segment) * a.heads + head];
    };
    const auto state_of = [&](int segment) -> float4& {
      const std::int64_t place = static_cast<std::int64_t>(first + segment) * a.heads + head;
      return reinterpret_cast<float4*>(arrays.segments + place * space_elements)[element];
    };
    float4 state{0, 0, 0, 0};
    if (!REVERSE && a.state) state = state_of(0);
    for (int at = 1; at < segments; at += scan_batch) {
      float4 made[scan_batch];
      float decay[scan_batch];
#pragma unroll
      for (int i = 0; i < scan_batch; ++i)
        if (at + i < segments) {
          const int segment = REVERSE ? segments - 1 - (at + i) : at + i;
          made[i] = state_of(segment);
          decay[i] = decay_of(REVERSE ? segment + 1 : segment - 1);
        }
#pragma unroll
      for (int i = 0; i < scan_batch; ++i)
        if (at + i < segments) {
          state.x = fmaf(decay[i], state.x, made[i].x);
          state.y = fmaf(decay[i], state.y, made[i].y);
          state.z = fmaf(decay[i], state.z, made[i].z);
          state.w = fmaf(decay[i], state.w, made[i].w);
          state_of(REVERSE ? segments - 1 - (at + i) : at + i) = state;
        }
    }
  }
}

template <bool REVERSE>
void find_states(cudaStream_t stream, const SpaceArguments& a, const SpaceArrays& arrays, const StateSpaceSize& size) {
  launch_chunks<WalkShared>(space_walk_kernel<REVERSE, false>, "space_walk_kernel", space_segments(size) * a.heads,
                            group_threads, stream, a, arrays);
  const dim3 grid(blocks_for(static_cast<std::int64_t>(a.heads) * scan_parts, 1),
                  static_cast<unsigned>(a.documents < scan_documents ? a.documents : scan_documents));
  space_scan_kernel<REVERSE><<<grid, scan_threads, 0, stream>>>(a, arrays);
  SO_CUDA_LAUNCHED("space_scan_kernel");
}

}  // namespace

void find_segment_states(cudaStream_t stream, const SpaceArguments& a, const SpaceArrays& arrays,
                         const StateSpaceSize& size, bool reverse) {
  if (size.rows <= state_space_segment) return;  // no document has several
  if (reverse)
    find_states<true>(stream, a, arrays, size);
  else
    find_states<false>(stream, a, arrays, size);
}

void keep_chunk_states(cudaStream_t stream, const SpaceArguments& a, const SpaceArrays& arrays,
                       const StateSpaceSize& size) {
  launch_chunks<WalkShared>(space_walk_kernel<false, true>, "space_walk_kernel", space_segments(size) * a.heads,
                            group_threads, stream, a, arrays);
}

}  // namespace so::hopper
