#include "model/decoder/gradients.h"

#include "base/error.h"

namespace so {

TiledGradients::TiledGradients(GradientSink& sink, Arena& arena, std::span<const Joined> parameters) {
  for (const Joined& parameter : parameters) {
    if (!parameter) continue;
    Entry entry{parameter.first, parameter.count, sink.gradient(parameter.first, parameter.count), {}};
    const Tensor& target = entry.target.tensor;
    if (target && target.dtype() != DType::f32)
      entry.sum = {arena.acquire("gradient over tiles", DType::f32, {target.size()}).data(), DType::f32,
                   target.shape()};
    entries_.push_back(entry);
  }
}

GradientSink::Target TiledGradients::gradient(int first, int count) {
  for (Entry& entry : entries_) {
    if (entry.first != first || entry.count != count) continue;
    Target target = entry.target;
    if (entry.sum) target = {entry.sum, Accumulate::overwrite};
    if (entry.written) target.mode = Accumulate::add;
    entry.written = true;
    return target;
  }
  SO_BUG("gradient of parameters {} to {} in a tile that has none", first, first + count - 1);
}

void TiledGradients::finish(Ops& ops, Stream& stream) const {
  for (const Entry& entry : entries_)
    if (entry.sum) ops.add_gradient(stream, entry.target.tensor, entry.sum, entry.target.mode);
}

void TiledGradients::require_gradients(int unit, Stream&) { SO_BUG("unit {} required by a tile", unit); }
void TiledGradients::gradients_ready(int unit, Stream&) { SO_BUG("unit {} ready after a tile", unit); }

}  // namespace so
