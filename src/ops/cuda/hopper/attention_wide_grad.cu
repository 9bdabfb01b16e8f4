// The gradient of attention with heads of 512 on Hopper's matrix units, each block as attention_wide.h says. A kernel
// for each of dq, dk and dv, since the sums of one fill the registers; each computes the scores for itself. With
//
//   S = scale q k^T,  P = exp(S - lse),  delta = rowsum(dout out),  dS = P (dout v^T - delta):
//   dq = scale dS k,  dk = scale dS^T q,  dv = P^T dout,
//
// that is eight products where five would do, at most 350 x 5 / 8 TFLOP/s by what the L2 cache gives.
#include "ops/cuda/hopper/attention_wide.h"

namespace so {
namespace {

using namespace kernel;
using namespace hopper;

enum class Of { dq, dk, dv };

template <Of OF>
struct WideGradShared {
  static constexpr int tiles = OF == Of::dv ? 1 : 2, stages = OF == Of::dv ? 9 : 5;
  bf16_t own[tiles][side * wide_dim];  // q and dout, k and v, or k
  bf16_t ring[stages][wide_ring_part];
  bf16_t exchange[wide_groups][part_elements];
  // These are of the ring's queries, each group's, for one block of rows and for the next.
  float lse[2][wide_groups][side], delta[2][wide_groups][side];
};

// A block's walk over the other side: keys that its queries see, or the queries that see its keys, of one head after
// another.
template <Of OF>
struct WideWalk {
  Document d;
  int first_row, first_other, kv_head, first_head, heads, blocks;
  __device__ WideWalk(const AttentionArguments& a, const WidePlace& place)
      : d(place.tile.document), first_row(place.tile.first) {
    const int group = a.heads / a.kv_heads;
    if constexpr (OF == Of::dq) {
      kv_head = place.head / group, first_head = place.head, heads = 1;
      first_other = d.first(first_row);
      blocks = (d.visible(min(first_row + side, d.q_count) - 1) - first_other + wide_rows - 1) / wide_rows;
    } else {
      kv_head = place.head, first_head = kv_head * group, heads = group;
      first_other = d.first_query(first_row);
      blocks = (max(d.past_query(first_row + side) - first_other, 0) + wide_rows - 1) / wide_rows;
    }
  }
  __device__ int rows() const { return (OF == Of::dq ? d.q_count : d.k_count) - first_row; }
  __device__ int steps() const { return heads * blocks; }
  __device__ int begin(int block) const { return first_other + block * wide_rows; }

  __device__ const bf16_t* own(const HeadsView& from) const {
    return rows_of<wide_dim>(from, (OF == Of::dq ? d.q_begin : d.k_begin) + first_row,
                             OF == Of::dq ? first_head : kv_head);
  }
  __device__ const bf16_t* other(const HeadsView& from, int head, int row) const {
    return rows_of<wide_dim>(from, (OF == Of::dq ? d.k_begin : d.q_begin) + row, OF == Of::dq ? kv_head : head);
  }
};

// Copies what the ring takes next: of each block of rows the parts for the scores, those for the gradients of P, and
// those that are summed up.
template <Of OF>
struct WideFetch {
  const AttentionArguments& a;
  const WideWalk<OF>& walk;
  WideGradShared<OF>& shared;
  int step = 0, block = 0, head = walk.first_head, turn = 0;

  __device__ void operator()(bf16_t* to) {
    constexpr int turns = (OF == Of::dv ? 2 : 3) * wide_parts;
    if (step == walk.steps()) return;
    const int row = walk.begin(block), count = (OF == Of::dq ? walk.d.k_count : walk.d.q_count) - row;
    const bool summed = turn >= turns - wide_parts, gradients = !summed && turn >= wide_parts;
    const HeadsView& from = OF == Of::dq   ? (gradients ? a.v : a.k)
                            : OF == Of::dk ? (gradients ? a.dout : a.q)
                                           : (summed ? a.dout : a.q);
    const bf16_t* const rows = walk.other(from, head, row);
    if (summed)
      copy_summed_part(to, rows, from.width, count, turn % wide_parts);
    else
      copy_scored_part(to, rows, from.width, count, turn % wide_parts);
    if (OF != Of::dq && turn == 0) fetch_statistics(row);
    if (++turn < turns) return;
    turn = 0, ++step;
    if (++block == walk.blocks) block = 0, ++head;
  }

 private:
  __device__ void fetch_statistics(int row) {
    const int thread = thread_number(), column = thread % wide_rows;
    const bool second = thread >= wide_rows;
    copy_statistic(&(second ? shared.delta : shared.lse)[step % 2][column / side][column % side], second, a, walk.d,
                   head, row + column);
  }
};

template <Of OF>
__global__ void __launch_bounds__(wide_threads, 1) attention_wide_grad_kernel(AttentionArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<WideGradShared<OF>*>(memory);
  const WidePlace place(a, OF == Of::dq ? a.cu_q : a.cu_k, OF == Of::dq ? a.heads : a.kv_heads);
  if (!place.tile.any) return;
  const WideWalk<OF> walk(a, place);
  const Document& d = walk.d;
  WideFetch<OF> fetch{a, walk, shared};
  PartRing<WideGradShared<OF>::stages> ring{shared.ring};
  const HeadsView &first = OF == Of::dq ? a.q : a.k, &second = OF == Of::dq ? a.dout : a.v;
  copy_wide_tile(shared.own[0], walk.own(first), first.width, walk.rows());
  if constexpr (OF != Of::dv) copy_wide_tile(shared.own[1], walk.own(second), second.width, walk.rows());
  ring.begin(fetch);

  const int lane = static_cast<int>(threadIdx.x) % warp;
  const int row = walk.first_row + static_cast<int>(threadIdx.x) / warp % 4 * 16 + lane / 4;  // and 8 more
  const int shift = d.k_count - d.q_count;
  const float scale = a.scale * log2_e;
  float lse[2] = {}, delta[2] = {};  // of the lane's two queries
  if constexpr (OF == Of::dq) load_statistics(lse, delta, a, d, place.head, row);
  WideSums sums;
  clear(sums);
  int block = 0;
  for (int step = 0; step < walk.steps(); ++step) {
    Sums scores, gradients;
    clear(scores);
    clear(gradients);
    add_wide_scores(scores, shared.own[0], ring, fetch);
    if constexpr (OF != Of::dv) add_wide_scores(gradients, shared.own[1], ring, fetch);
    wait_products<0>();
    settled(scores);
    if constexpr (OF != Of::dv) settled(gradients);
    settled(sums);

    // Query r sees key c where 0 <= r + shift - c < window. Rows beyond the document's are zeros, and add nothing.
    const int begin = walk.begin(block) + wide_group() * side;
    const int corner = OF == Of::dq ? walk.first_row + shift - begin : begin + shift - walk.first_row;
    const int distance = OF == Of::dq ? row + shift - begin - lane % 4 * 2 : begin + shift + lane % 4 * 2 - row;
    if constexpr (OF == Of::dq) {
      query_probabilities(scores, scale, lse, corner, distance, d.window);
      query_score_gradients(scores, gradients, delta);
    } else {
      key_probabilities(scores, scale, shared.lse[step % 2][wide_group()], corner, distance, d.window);
      if constexpr (OF == Of::dk) key_score_gradients(scores, gradients, shared.delta[step % 2][wide_group()]);
    }
    Operand operand;
    to_operand(operand, scores);
    add_wide_products(sums, operand, shared.exchange, ring, fetch);
    if (++block == walk.blocks) block = 0;
  }
  end_walk();
  const HeadsView& to = OF == Of::dq ? a.dq : OF == Of::dk ? a.dk : a.dv;
  const std::int64_t own = (OF == Of::dq ? d.q_begin : d.k_begin) + walk.first_row;
  store_wide_tile(rows_of<wide_dim>(to, own, place.head), to.width, shared.own[0], sums, OF == Of::dv ? 1 : a.scale,
                  walk.rows());
}

template <Of OF>
void wide_gradient(const char* name, cudaStream_t stream, const AttentionArguments& a) {
  const bool queries = OF == Of::dq;
  launch_wide<WideGradShared<OF>>(attention_wide_grad_kernel<OF>, name, queries ? a.q_rows : a.k_rows,
                                  queries ? a.heads : a.kv_heads, stream, a);
}

}  // namespace

void hopper_attention_wide_grad(cudaStream_t stream, const AttentionArguments& a) {
  SO_CHECK(a.head_dim == wide_dim, "heads of {}", a.head_dim);
  wide_gradient<Of::dq>("attention_wide_grad_kernel, dq", stream, a);
  wide_gradient<Of::dk>("attention_wide_grad_kernel, dk", stream, a);
  wide_gradient<Of::dv>("attention_wide_grad_kernel, dv", stream, a);
}

}  // namespace so
