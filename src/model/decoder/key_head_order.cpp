#include "model/decoder/key_head_order.h"

namespace so {
namespace {

// Calls copy(sorted, plain) with the place of each kind of column in both orders, for all key heads.
template <class Copy>
void for_each_kind(const DeltaSpec& d, Tensor sorted, Tensor plain, const Copy& copy) {
  const std::int64_t heads = d.k_heads, shared = d.v_heads / heads, values = shared * d.v_dim;
  const auto kinds = [&](std::int64_t first, std::int64_t step, std::initializer_list<std::int64_t> widths) {
    std::int64_t column = first, offset = first;
    for (const std::int64_t width : widths) {
      copy(Heads{sorted, offset, heads, width, step}, Heads{plain, column, heads, width});
      offset += width;
      column += heads * width;
    }
  };
  kinds(0, 2 * d.k_dim + 2 * values, {d.k_dim, d.k_dim, values, values});
  kinds(d.convolved_width() + d.v_width(), 2 * shared, {shared, shared});
}

}  // namespace

void from_key_head_order(Ops& ops, Stream& stream, const DeltaSpec& delta, Tensor out, Tensor in) {
  for_each_kind(delta, in, out, [&](Heads sorted, Heads plain) { ops.copy_heads(stream, plain, sorted); });
}

void to_key_head_order(Ops& ops, Stream& stream, const DeltaSpec& delta, Tensor out, Tensor in) {
  for_each_kind(delta, out, in, [&](Heads sorted, Heads plain) { ops.copy_heads(stream, sorted, plain); });
}

}  // namespace so
