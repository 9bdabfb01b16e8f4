// The outputs of state spaces in chunks, and the gradients of their inputs, of all segments at once; and the entrances
// (space_chunks.h). A block goes through a segment of a head, with its state in registers.
#include "ops/cuda/hopper/space_chunks.h"

namespace so {
namespace {

using namespace kernel;
using namespace hopper;

constexpr int output_stages = 2;

struct OutputTiles {
  bf16_t b[side * head_dim], c[side * head_dim], x[part_elements];
};
struct OutputShared {
  OutputTiles tiles[output_stages];
  bf16_t scores[part_elements];
  SegmentScales scales;
};

__device__ inline float skip_of(const SpaceArguments& a, int head) {
  return to_float(static_cast<const bf16_t*>(a.skip)[head]);
}

// out, and the state after the last row if one is continued.
__global__ void __launch_bounds__(group_threads, 2) space_output_kernel(SpaceArguments a, SpaceArrays arrays) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<OutputShared*>(memory);
  const int head = static_cast<int>(blockIdx.x) % a.heads, group = head / (a.heads / a.groups);
  const SpaceSegment segment(a, static_cast<int>(blockIdx.x) / a.heads);
  if (segment.rows <= 0) return;
  const int chunks = segment.chunks();
  const auto fetch = [&](OutputTiles& to, int chunk) {
    const int row = segment.row(chunk), count = segment.count(chunk);
    copy_tile<head_dim, group_threads>(to.b, rows_of(a.b, row, group), a.b.width, count);
    copy_tile<head_dim, group_threads>(to.c, rows_of(a.c, row, group), a.c.width, count);
    copy_tile<side, group_threads>(to.x, rows_of(a.x, row, head), a.x.width, count);
  };
  fetch(shared.tiles[0], 0);
  commit_copies();
  shared.scales.find(a, segment, head);

  Sums state[head_parts];
  clear(state);
  float* const continued = a.state ? a.state + static_cast<std::int64_t>(head) * space_elements : nullptr;
  if (segment.of_document() == 1) {
    if (continued) for_each_of_state(state, continued, [](float& x, float& stored) { x = stored; });
  } else if (continued || segment.number > 0) {
    read_state(state, arrays.segments + segment.place(a, segment.number, head) * space_elements);
  }
  const float skip = skip_of(a, head);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_copies<0>();
    publish();
    __syncthreads();
    if (chunk + 1 < chunks) fetch(shared.tiles[(chunk + 1) % output_stages], chunk + 1);
    commit_copies();
    OutputTiles& tiles = shared.tiles[chunk % output_stages];
    const float* const total = shared.scales.total[chunk];
    const float* const step = shared.scales.step[chunk];
    const float whole = shared.scales.of_chunk(chunk);

    Operand before[head_parts];
#pragma unroll
    for (int part = 0; part < head_parts; ++part) {
      to_operand(before[part], state[part]);
      settled(before[part]);
    }
    Sums scores, out;
    begin_products();
    row_products<head_dim>(scores, tiles.c, tiles.b);
    commit_products();
    state_products(out, before, tiles.c);
    commit_products();
    wait_products<1>();
    settled(scores);
    mask_products(scores, total, [&](int column) { return step[column]; });
    Operand rounded;
    to_operand(rounded, scores);
    store_operand(shared.scores, rounded);
    publish();
    __syncthreads();
    wait_products<0>();
    settled(out);

    Operand given, kept;
    load_transposed(given, tiles.x);
    scale_columns(kept, given, [&](int column) { return step[column] * __expf(whole - total[column]); });
    scale_columns(out, [&](int column) { return __expf(total[column]); });
    scale(state, __expf(whole));
    settled(given);
    settled(kept);
    begin_products();
#pragma unroll
    for (int k = 0; k < side / 16; ++k)
      multiply_operand_columns(out, given[k], descriptor(shared.scores) + k * column_step, true);
    commit_products();
    add_products<head_dim>(state, kept, tiles.b);
    commit_products();
    wait_products<1>();
    settled(out);
#pragma unroll
    for (int n = 0; n < side / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[4 * n + i] = fmaf(skip, element(given, n, i), out[4 * n + i]);
    Operand result;
    to_operand(result, out);
    // By way of the columns of x that the warp alone has read.
    write_transposed(rows_of(a.out, segment.row(chunk), head), a.out.width, tiles.x, result, segment.count(chunk));
    wait_products<0>();
#pragma unroll
    for (int part = 0; part < head_parts; ++part) settled(state[part]);
  }
  if (continued && segment.number + 1 == segment.of_document())
    for_each_of_state(state, continued, [](float& x, float& stored) { stored = x; });
}

struct InputsTiles {
  bf16_t b[side * head_dim], c[side * head_dim], x[part_elements], dout[part_elements];
};
struct InputsShared {
  InputsTiles tiles[output_stages];
  bf16_t scores[part_elements];
  SegmentScales scales;
  float dots[group_threads / warp][side];
};

// From the last chunk to the first. With D the rows of dout, and dS' the gradient of the state after a chunk:
//   U = (lower part of exp(G_i - G_j) C B^T)^T D + exp(G' - G) B dS'      dx = s U + skip D      ds = <U, X> of a row
//   dS = exp(G') dS' + C^T (exp(G) D)
// Writes dS' of documents of several chunks.
__global__ void __launch_bounds__(group_threads, 2) space_inputs_kernel(SpaceArguments a, SpaceArrays arrays) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<InputsShared*>(memory);
  const int head = static_cast<int>(blockIdx.x) % a.heads, group = head / (a.heads / a.groups);
  const SpaceSegment segment(a, static_cast<int>(blockIdx.x) / a.heads);
  if (segment.rows <= 0) return;
  const int chunks = segment.chunks();
  const auto fetch = [&](InputsTiles& to, int chunk) {
    const int row = segment.row(chunk), count = segment.count(chunk);
    copy_tile<head_dim, group_threads>(to.b, rows_of(a.b, row, group), a.b.width, count);
    copy_tile<head_dim, group_threads>(to.c, rows_of(a.c, row, group), a.c.width, count);
    copy_tile<side, group_threads>(to.x, rows_of(a.x, row, head), a.x.width, count);
    copy_tile<side, group_threads>(to.dout, rows_of(a.dout, row, head), a.dout.width, count);
  };
  fetch(shared.tiles[(chunks - 1) % output_stages], chunks - 1);
  commit_copies();
  shared.scales.find(a, segment, head);

  Sums dstate[head_parts];
  clear(dstate);
  if (segment.number + 1 < segment.of_document())
    read_state(dstate, arrays.segments + segment.place(a, segment.number, head) * space_elements);
  const float skip = skip_of(a, head);
  for (int chunk = chunks - 1; chunk >= 0; --chunk) {
    wait_copies<0>();
    publish();
    __syncthreads();
    if (chunk > 0) fetch(shared.tiles[(chunk - 1) % output_stages], chunk - 1);
    commit_copies();
    InputsTiles& tiles = shared.tiles[chunk % output_stages];
    const float* const total = shared.scales.total[chunk];
    const float* const step = shared.scales.step[chunk];
    const float whole = shared.scales.of_chunk(chunk);
    const int row = segment.row(chunk), count = segment.count(chunk);

    Operand after[head_parts];
#pragma unroll
    for (int part = 0; part < head_parts; ++part) {
      to_operand(after[part], dstate[part]);
      settled(after[part]);
    }
    Sums scores, u;
    begin_products();
    row_products<head_dim>(scores, tiles.c, tiles.b);
    commit_products();
    state_products(u, after, tiles.b);
    commit_products();
    if (segment.document_rows > side) {
      const std::int64_t at = chunk_state(a, segment.document, segment.number * segment_chunks + chunk, head);
#pragma unroll
      for (int part = 0; part < head_parts; ++part)
        write_rows(arrays.dstates + at + part * side, head_dim, shared.scores, after[part]);
    }
    wait_products<1>();
    settled(scores);
    mask_products(scores, total, [](int) { return 1.0f; });
    Operand rounded;
    to_operand(rounded, scores);
    store_operand(shared.scores, rounded);
    publish();
    __syncthreads();
    wait_products<0>();
    settled(u);

    Operand given, kept;
    load_transposed(given, tiles.dout);
    scale_columns(kept, given, [&](int column) { return __expf(total[column]); });
    scale_columns(u, [&](int column) { return __expf(whole - total[column]); });
    scale(dstate, __expf(whole));
    settled(given);
    settled(kept);
    begin_products();
#pragma unroll
    for (int k = 0; k < side / 16; ++k) multiply_operand(u, given[k], descriptor(shared.scores) + k * row_step, true);
    commit_products();
    add_products<head_dim>(dstate, kept, tiles.c);
    commit_products();
    wait_products<1>();
    settled(u);
    Operand x;
    load_transposed(x, tiles.x);
    const int first = column_of(0, 0), lane = thread_number() % warp, number = thread_number() / warp;
#pragma unroll
    for (int n = 0; n < side / 8; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = first + 8 * n + i;
        float dot = u[4 * n + i] * element(x, n, i) + u[4 * n + i + 2] * element(x, n, i + 2);
#pragma unroll
        for (int distance = 4; distance < warp; distance *= 2) dot += __shfl_xor_sync(0xffffffffu, dot, distance);
        if (lane < 4) shared.dots[number][column] = dot;
        u[4 * n + i] = fmaf(step[column], u[4 * n + i], skip * element(given, n, i));
        u[4 * n + i + 2] = fmaf(step[column], u[4 * n + i + 2], skip * element(given, n, i + 2));
      }
    Operand result;
    to_operand(result, u);
    // By way of the columns of x that the warp alone has read.
    write_transposed(rows_of(a.dx, row, head), a.dx.width, tiles.x, result, count);
    wait_products<0>();
#pragma unroll
    for (int part = 0; part < head_parts; ++part) settled(dstate[part]);
    __syncthreads();
    if (const int thread = thread_number(); thread < count) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < group_threads / warp; ++i) sum += shared.dots[i][thread];
      a.dstep[(row + thread) * a.gate_width + head] = sum;
    }
  }
}

SpaceArrays arrays_of(const SpaceArguments& a, const StateSpaceSize& size, bool gradient) {
  const ChunkedSpaceScratch at(size, gradient);
  return {reinterpret_cast<float*>(a.scratch + at.segments), reinterpret_cast<float*>(a.scratch + at.decays),
          reinterpret_cast<bf16_t*>(a.scratch + at.states), reinterpret_cast<bf16_t*>(a.scratch + at.dstates)};
}

}  // namespace

void hopper_state_space(cudaStream_t stream, const SpaceArguments& a, const StateSpaceSize& size) {
  const SpaceArrays arrays = arrays_of(a, size, false);
  find_segment_states(stream, a, arrays, size, false);
  launch_chunks<OutputShared>(space_output_kernel, "space_output_kernel", space_segments(size) * a.heads, group_threads,
                              stream, a, arrays);
}

void hopper_state_space_grad(cudaStream_t stream, const SpaceArguments& a, const StateSpaceSize& size) {
  const SpaceArrays arrays = arrays_of(a, size, true);
  find_segment_states(stream, a, arrays, size, false);
  keep_chunk_states(stream, a, arrays, size);
  find_segment_states(stream, a, arrays, size, true);
  launch_chunks<InputsShared>(space_inputs_kernel, "space_inputs_kernel", space_segments(size) * a.heads, group_threads,
                              stream, a, arrays);
  finish_projections(stream, a, arrays, size);
}

}  // namespace so
