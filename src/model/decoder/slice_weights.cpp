#include "model/decoder/slice_weights.h"

#include <vector>

namespace so {

GradientSink::Target own_gradient(Stream& stream, const GradientSink::Target& target, std::int64_t first,
                                  std::int64_t count) {
  if (target.mode == Accumulate::overwrite) stream.zero(target.tensor.data(), target.tensor.bytes());
  return {target.tensor.rows(first, count), target.mode};
}

Tensor own_weight(const DecoderContext& context, const DecoderPass& pass, const char* name, Tensor all,
                  std::span<const OwnRows> rows) {
  std::int64_t count = 0;
  for (const OwnRows& some : rows) count += some.count;
  std::vector<std::int64_t> shape(all.shape().begin(), all.shape().end());
  shape.front() = count;
  const DType t = context.activations();
  const Tensor memory = pass.arena.acquire(name, t, {all.size() / all.dim(0) * count});
  const Tensor own(memory.data(), t, shape);
  for (const OwnRows& some : rows) {
    const Tensor from = all.rows(some.of_all, some.count);
    pass.stream.copy(own.rows(some.of_own, some.count).data(), from.data(), from.bytes());
  }
  return own;
}

Tensor acquire_own_gradient(const DecoderPass& pass, const char* name, Tensor own) {
  return {pass.arena.acquire(name, DType::f32, {own.size()}).data(), DType::f32, own.shape()};
}

void write_own_gradient(Ops& ops, Stream& stream, const GradientSink::Target& whole, Tensor own,
                        std::span<const OwnRows> rows) {
  if (whole.mode == Accumulate::overwrite) stream.zero(whole.tensor.data(), whole.tensor.bytes());
  for (const OwnRows& some : rows)
    ops.add_gradient(stream, whole.tensor.rows(some.of_all, some.count), own.rows(some.of_own, some.count), whole.mode);
}

}  // namespace so
