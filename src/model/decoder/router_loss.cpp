#include "model/decoder/router_loss.h"

#include "offload/memory/sequence_exchange.h"

namespace so {

RouterLoad acquire_router_load(const DecoderContext& context, Arena& arena) {
  const ExpertSpec& x = context.spec.experts;
  if (x.balance == 0) return {};
  const Tensor both = arena.acquire("router load", DType::f32, {2 * x.count});
  return {both.rows(0, x.count), both.rows(x.count, x.count), both};
}

// The loss is balance * E * sum over e of (counts[e] / rows) * (shares[e] / rows), with a row for each token of each
// layer with experts.
double router_loss_scale(const DecoderContext& context, std::int64_t tokens) {
  const DecoderSpec& s = context.spec;
  const auto rows = static_cast<double>(tokens * s.expert_layers());
  return s.experts.balance * static_cast<double>(s.experts.count) / (rows * rows);
}

void add_router_loss(const DecoderContext& context, const DecoderPass& pass, Tensor losses) {
  if (!pass.load.counts) return;
  // The loss is one of all tokens, and not the sum of the slices'.
  if (pass.batch.is_slice()) {
    Arena::Scope scope(pass.arena);
    const Tensor both = pass.load.both;
    SequenceExchange& ranks = *context.exchange;
    ranks.add_up(pass.stream, both,
                 pass.arena.acquire("router load of ranks", DType::f32, {ranks.size() - 1, both.size()}));
  }
  context.ops.add_router_loss(pass.stream, losses, pass.batch.targets, pass.load.counts, pass.load.shares,
                              static_cast<float>(router_loss_scale(context, pass.batch.all_tokens())));
}

}  // namespace so
