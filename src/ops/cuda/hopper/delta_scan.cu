// The scans of the gated delta rule over the chunks of each document, and its entrances (delta_chunks.h).
#include "ops/cuda/hopper/delta_chunks.h"
#include "ops/cuda/hopper/delta_gradient.h"

namespace so {
namespace {

using namespace kernel;
using namespace hopper;

// Reads or writes the block's half of a state, f32 [k_dim, v_dim].
template <class F>
__device__ void for_each_of_state(Sums (&state)[head_parts], float* memory, int half, const F& f) {
#pragma unroll
  for (int part = 0; part < head_parts; ++part)
#pragma unroll
    for (int n = 0; n < side / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        f(state[part][4 * n + i], memory[(part * side + column_of(n, i)) * head_dim + half * side + row_of(i)]);
}

// Forward. OUTPUT: computes out; else what the gradient needs, each chunk's state and U.
template <bool OUTPUT>
__global__ void __launch_bounds__(group_threads, 1) delta_scan_kernel(DeltaArguments a, DeltaArrays arrays) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<ScanShared*>(memory);
  const ScanPlace place(a);
  Sums state[head_parts];
#pragma unroll
  for (auto& part : state)
#pragma unroll
    for (float& x : part) x = 0;
  float* const continued =
      OUTPUT && a.state ? a.state + static_cast<std::int64_t>(place.head) * state_elements : nullptr;
  if (continued) for_each_of_state(state, continued, place.half, [](float& x, float& stored) { x = stored; });

#pragma unroll
  for (int chunk = 0; chunk < scan_stages - 1; ++chunk) {
    if (chunk < place.chunks) place.fetch(shared.tiles[chunk], a, arrays, a.v, chunk, OUTPUT);
    commit_copies();
  }
  float next_decay = place.decay(a, arrays, 0);
  int stage = 0;
  for (int chunk = 0; chunk < place.chunks; ++chunk) {
    const float decay = next_decay;
    next_decay = place.decay(a, arrays, chunk + 1);
    wait_copies<scan_stages - 2>();
    publish();
    __syncthreads();
    if (chunk + scan_stages - 1 < place.chunks)
      place.fetch(shared.tiles[stage > 0 ? stage - 1 : scan_stages - 1], a, arrays, a.v, chunk + scan_stages - 1,
                  OUTPUT);
    commit_copies();
    const ScanTiles& tiles = shared.tiles[stage];
    const int row = place.row(chunk), count = place.count(chunk);

    Operand before[head_parts];
#pragma unroll
    for (int part = 0; part < head_parts; ++part) {
      to_operand(before[part], state[part]);
      settled(before[part]);
    }
    Sums values, out;
    begin_products();
    state_products(values, before, tiles.k);
    commit_products();
    if constexpr (OUTPUT) {
      state_products(out, before, tiles.q);
      commit_products();
      wait_products<1>();
    } else {
      if (place.keeps_states()) {
#pragma unroll
        for (int part = 0; part < head_parts; ++part)
          write_rows(arrays.states + place.state(a, chunk) + part * side, head_dim, shared.out, before[part]);
      }
      wait_products<0>();
    }
    settled(values);
    Operand given;
    load_transposed(given, tiles.values);
#pragma unroll
    for (int n = 0; n < side / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 scale = *reinterpret_cast<const float2*>(&tiles.scales[column_of(n, i)]);
        values[4 * n + i] = fmaf(scale.x, element(given, n, i), -scale.y * values[4 * n + i]);
      }
    Operand right;
    to_operand(right, values);
    settled(right);
    Sums learned;
    begin_products();
#pragma unroll
    for (int k = 0; k < side / 16; ++k)
      multiply_operand_columns(learned, right[k], descriptor(tiles.inverse) + k * column_step, k > 0);
    commit_products();
    wait_products<0>();
    settled(learned);
    if constexpr (OUTPUT) settled(out);

    Operand u, kept;
    to_operand(u, learned);
#pragma unroll
    for (int n = 0; n < side / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 scale = *(reinterpret_cast<const float2*>(&tiles.scales[column_of(n, i)]) + 1);
        learned[4 * n + i] *= scale.y;
        if constexpr (OUTPUT) out[4 * n + i] *= scale.x;
      }
    to_operand(kept, learned);
#pragma unroll
    for (auto& part : state)
#pragma unroll
      for (float& x : part) x *= decay;
    settled(u);
    settled(kept);
    begin_products();
    if constexpr (OUTPUT) {
#pragma unroll
      for (int k = 0; k < side / 16; ++k)
        multiply_operand_columns(out, u[k], descriptor(tiles.scores) + k * column_step, true);
      commit_products();
    }
    add_products<head_dim>(state, kept, tiles.k);
    commit_products();
    if constexpr (OUTPUT) {
      wait_products<1>();
      settled(out);
      Operand result;
      to_operand(result, out);
      write_transposed(rows_of(a.out, row, place.head) + place.half * side, a.out.width, shared.out, result, count);
    } else {
      write_transposed(arrays.values + row_place(a, row, place.head) * head_dim + place.half * side, head_dim,
                       shared.out, u, count);
    }
    wait_products<0>();
#pragma unroll
    for (auto& part : state) settled(part);
    stage = stage + 1 < scan_stages ? stage + 1 : 0;
  }
  if (continued) for_each_of_state(state, continued, place.half, [](float& x, float& stored) { stored = x; });
}

// Backward, from the last chunk to the first. With dS' the gradient of what follows a chunk and D that of out:
//   dU = P^T D + exp(G' - G) K dS'      dR = T^T dU      dV = b dR      dS = exp(G') dS' + (exp(G) Q)^T D
//                                                                           - (b exp(G) K)^T dR
// where R is what T is multiplied with. Keeps dS' and dR for the last kernel.
__global__ void __launch_bounds__(group_threads, 1) delta_scan_back_kernel(DeltaArguments a, DeltaArrays arrays) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<ScanShared*>(memory);
  const ScanPlace place(a);
  Sums dstate[head_parts];
#pragma unroll
  for (auto& part : dstate)
#pragma unroll
    for (float& x : part) x = 0;
#pragma unroll
  for (int step = 0; step < scan_stages - 1; ++step) {
    if (step < place.chunks) place.fetch(shared.tiles[step], a, arrays, a.dout, place.chunks - 1 - step, true);
    commit_copies();
  }
  float next_decay = place.decay(a, arrays, place.chunks - 1);
  int stage = 0;
  for (int chunk = place.chunks - 1; chunk >= 0; --chunk) {
    const float decay = next_decay;
    next_decay = place.decay(a, arrays, chunk - 1);
    wait_copies<scan_stages - 2>();
    publish();
    __syncthreads();
    if (const int next = chunk - (scan_stages - 1); next >= 0)
      place.fetch(shared.tiles[stage > 0 ? stage - 1 : scan_stages - 1], a, arrays, a.dout, next, true);
    commit_copies();
    const ScanTiles& tiles = shared.tiles[stage];
    const int row = place.row(chunk), count = place.count(chunk);

    Operand after[head_parts], dout;
#pragma unroll
    for (int part = 0; part < head_parts; ++part) to_operand(after[part], dstate[part]);
    load_transposed(dout, tiles.values);
#pragma unroll
    for (int part = 0; part < head_parts; ++part) settled(after[part]);
    settled(dout);
    Sums from_state, du;
    begin_products();
    state_products(from_state, after, tiles.k);
#pragma unroll
    for (int k = 0; k < side / 16; ++k) multiply_operand(du, dout[k], descriptor(tiles.scores) + k * row_step, k > 0);
    commit_products();
    if (place.keeps_states()) {
#pragma unroll
      for (int part = 0; part < head_parts; ++part)
        write_rows(arrays.dstates + place.state(a, chunk) + part * side, head_dim, shared.out, after[part]);
    }
    wait_products<0>();
    settled(from_state);
    settled(du);
#pragma unroll
    for (int n = 0; n < side / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        du[4 * n + i] = fmaf(tiles.scales[column_of(n, i)].w, from_state[4 * n + i], du[4 * n + i]);
    Operand right;
    to_operand(right, du);
    settled(right);
    Sums dr;
    begin_products();
#pragma unroll
    for (int k = 0; k < side / 16; ++k) multiply_operand(dr, right[k], descriptor(tiles.inverse) + k * row_step, k > 0);
    commit_products();
    wait_products<0>();
    settled(dr);

    Operand kept, dv, from_out, from_dr;
    to_operand(kept, dr);
    Sums scaled;
#pragma unroll
    for (int n = 0; n < side / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scaled[4 * n + i] = dr[4 * n + i] * tiles.scales[column_of(n, i)].x;
    to_operand(dv, scaled);
#pragma unroll
    for (int n = 0; n < side / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 scale = tiles.scales[column_of(n, i)];
        dr[4 * n + i] *= -scale.y;
        scaled[4 * n + i] = element(dout, n, i) * scale.z;
      }
    to_operand(from_dr, dr);
    to_operand(from_out, scaled);
#pragma unroll
    for (auto& part : dstate)
#pragma unroll
      for (float& x : part) x *= decay;
    settled(from_dr);
    settled(from_out);
    begin_products();
    add_products<head_dim>(dstate, from_out, tiles.q);
    add_products<head_dim>(dstate, from_dr, tiles.k);
    commit_products();
    write_transposed(arrays.dvalues + row_place(a, row, place.head) * head_dim + place.half * side, head_dim,
                     shared.out, kept, count);
    write_transposed(rows_of(a.dv, row, place.head) + place.half * side, a.dv.width, shared.out, dv, count);
    wait_products<0>();
#pragma unroll
    for (auto& part : dstate) settled(part);
    stage = stage + 1 < scan_stages ? stage + 1 : 0;
  }
}

std::int64_t scan_blocks(const DeltaArguments& a) {
  return static_cast<std::int64_t>(a.documents) * a.v_heads * head_parts;
}

}  // namespace

void hopper_delta_rule(cudaStream_t stream, const DeltaArguments& a, const DeltaSize& size) {
  const DeltaArrays arrays = delta_arrays(a, size, false);
  prepare_chunks(stream, a, arrays, size);
  launch_chunks<ScanShared>(delta_scan_kernel<true>, "delta_scan_kernel", scan_blocks(a), group_threads, stream, a,
                            arrays);
}

void hopper_delta_rule_grad(cudaStream_t stream, const DeltaArguments& a, const DeltaSize& size) {
  const DeltaArrays arrays = delta_arrays(a, size, true);
  prepare_chunks(stream, a, arrays, size);
  launch_chunks<ScanShared>(delta_scan_kernel<false>, "delta_scan_kernel", scan_blocks(a), group_threads, stream, a,
                            arrays);
  launch_chunks<ScanShared>(delta_scan_back_kernel, "delta_scan_back_kernel", scan_blocks(a), group_threads, stream, a,
                            arrays);
  finish_gradients(stream, a, arrays, size);
}

}  // namespace so
