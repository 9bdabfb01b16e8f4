// Internal to the decoder: what stands between the norms of a layer's second block.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/decoder/layer_activations.h"
#include "model/decoder/pass.h"
#include "model/parameters.h"
#include "offload/memory/parameter_source.h"

namespace so {

// An MLP or experts: rows of tokens, each by itself. What its functions acquire lasts as long as the caller's scope of
// the arena.
class FeedForward {
 public:
  virtual ~FeedForward() = default;

  // Names what forward() makes, for observers.
  virtual std::string_view name_of_output() const = 0;
  // Lists the parameters that backward() asks the sink for, in any order; those that the layer has not are empty.
  virtual std::vector<Joined> parameters() const = 0;

  // Each acquires a part of what forward() works with, as far as it is empty, for n tokens: which experts a token goes
  // to (if there are experts), the gate and up projections, and all.
  virtual void complete_routing(Arena& arena, std::int64_t n, LayerActivations& a) const = 0;
  virtual void complete_gate_up(Arena& arena, std::int64_t n, LayerActivations& a) const = 0;
  virtual void complete(Arena& arena, std::int64_t n, LayerActivations& a) const = 0;
  // The same of what lies before norms within it, which a layer keeps with a.mlp_out.
  virtual void complete_outputs(Arena&, std::int64_t, LayerActivations&) const {}
  // Whether a layer that keeps all keeps a.activated too.
  virtual bool keeps_activated() const = 0;
  // Whether forward() reads a.normed2 in codes, and backward() only what it is the norm of, and codes where a.gate_up
  // is not there.
  virtual bool reads_codes() const = 0;
  // Whether a layer that keeps this may work on a few tokens at a time.
  virtual bool works_in_tiles(const LayerActivations& kept) const = 0;

  // Computes `out`, T [n, H], from a.normed2. first_rows: whether the rows are the first of the layer's in this pass,
  // for the router's load.
  virtual void forward(const DecoderPass& pass, const LayerActivations& a, Tensor out, bool first_rows) const = 0;
  // dnormed is overwritten with the gradient of a.normed2; dout is that of what forward() made, and may lie in dnormed.
  // a.gate_up, if it was kept, is overwritten with its gradient. What else of forward() is empty is computed again.
  // The gradient that a.middle gets beside that of a.normed2 is added to dresidual.
  virtual void backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations& a, Tensor dnormed,
                        Tensor dout, Tensor dresidual) const = 0;
};

}  // namespace so
