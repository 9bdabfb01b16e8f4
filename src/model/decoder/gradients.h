// Internal to the decoder: gradients of a matrix and its bias.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "device/arena.h"
#include "model/decoder/layer_activations.h"
#include "model/decoder/pass.h"
#include "model/parameters.h"
#include "offload/memory/parameter_source.h"
#include "ops/ops.h"

namespace so {

// The gradient of a vector, or a convolution's weight, whose operation always computes it: into the arena if nobody
// wants it, where it lasts as long as the caller's scope.
inline GradientSink::Target vector_gradient(GradientSink& gradients, Arena& arena, Joined parameter, Tensor weight) {
  GradientSink::Target target = gradients.gradient(parameter.first, parameter.count);
  if (target.tensor) return target;
  const Tensor unused = arena.acquire("unused gradient", DType::f32, {weight.size()});
  return {Tensor(unused.data(), DType::f32, weight.shape()), Accumulate::overwrite};
}

// Enqueues the gradients from dy, where y = x w^T + bias; without a bias that of the matrix alone, and of what is
// frozen none.
inline void grad_linear(Ops& ops, Stream& stream, GradientSink& gradients, Joined weight, Joined bias, Tensor dy,
                        Tensor x) {
  const auto dw = gradients.gradient(weight.first, weight.count);
  if (dw.tensor) ops.linear_grad_weight(stream, dw.tensor, dy, x, dw.mode);
  if (!bias) return;
  const auto db = gradients.gradient(bias.first, bias.count);
  if (db.tensor) ops.linear_grad_bias(stream, db.tensor, dy, db.mode);
}

// The gradients that tiles of tokens add up, in fp32 where they are kept in less: a weight's gradient is then rounded
// once, as without tiles. Asks the sink behind it once for each parameter.
class TiledGradients final : public GradientSink {
 public:
  // Takes these parameters, but for those that are not there; sums come from the arena, where they last as long as the
  // caller's scope.
  TiledGradients(GradientSink& sink, Arena& arena, std::span<const Joined> parameters);
  // Writes the sums where the sink wants them. After the last tile.
  void finish(Ops& ops, Stream& stream) const;

  Target gradient(int first, int count) override;
  // Units are the caller's business.
  void require_gradients(int, Stream&) override;
  void gradients_ready(int, Stream&) override;

 private:
  struct Entry {
    int first = 0, count = 0;
    Target target;
    Tensor sum;  // empty where the target takes the tiles itself
    bool written = false;
  };
  std::vector<Entry> entries_;
};

// Calls body(sink, first, count) for each tile of `tile` tokens, in order, with a sink for the gradients of these
// parameters; what it acquires lasts for one tile. A batch that is one tile writes to `gradients` itself.
template <class Body>
void for_each_gradient_tile(Ops& ops, const DecoderPass& pass, GradientSink& gradients,
                            std::initializer_list<Joined> parameters, std::int64_t tile, const Body& body) {
  const std::int64_t n = pass.tokens();
  Arena::Scope scope(pass.arena);
  if (tile == n) return body(gradients, 0, n);
  TiledGradients sums(gradients, pass.arena, {parameters.begin(), parameters.size()});
  for_each_tile(n, tile, [&](std::int64_t first, std::int64_t count) {
    Arena::Scope block(pass.arena);
    body(sums, first, count);
  });
  sums.finish(ops, pass.stream);
}

}  // namespace so
