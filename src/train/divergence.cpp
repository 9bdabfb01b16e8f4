#include "train/divergence.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/finite.h"
#include "base/log.h"
#include "model/parameters.h"
#include "optim/engine_ops.h"

namespace so {
namespace {

// An activation in the order of the forward pass.
struct Seen {
  int unit = 0;
  std::string_view what;
};

// The name of the unit's first weight that is not finite; empty if there is none.
std::string non_finite_weight(OffloadEngine& engine, int unit) {
  const ParameterLayout& layout = engine.layout();
  const auto [first, last] = layout.unit_parameters(unit);
  for (int p = first; p < last; ++p) {
    bool finite = true;
    engine.read_state(StateArray::master, layout.range(p), [&](std::int64_t, std::span<const float> values) {
      finite = finite && find_non_finite(values) == values.size();
    });
    if (!finite) return layout.parameter(p).name;
  }
  return {};
}

std::string describe(const Seen& seen, const DecoderSpec& spec) {
  if (seen.unit == 0 || seen.unit == head_unit(spec)) return std::string(seen.what);
  return fmt::format("layer {}, {}", seen.unit - layer_unit(0), seen.what);
}

}  // namespace

std::string find_non_finite_activation(const Decoder& decoder, Stream& stream, const DeviceBatch& batch,
                                       OffloadEngine& engine, Arena& arena, Tensor losses) {
  const DecoderSpec& spec = decoder.spec();
  const std::size_t most = static_cast<std::size_t>(4 * spec.layers + 3);  // what a forward pass shows
  std::vector<Seen> seen;
  std::vector<GradStats> stats(most);
  const auto ops = make_engine_ops(stream.device());
  try {
    const Arena::Scope scope(arena);
    const Tensor memory = arena.acquire("search for what is not finite", DType::u8,
                                        {static_cast<std::int64_t>(most * sizeof(GradStats))});
    auto* const on_device = static_cast<GradStats*>(memory.data());
    const ForwardObserver observe = [&](int unit, std::string_view what, Tensor values) {
      SO_CHECK(seen.size() < most, "a forward pass of more than {} activations", most);
      const Arena::Scope search(arena);
      const Tensor scratch = arena.acquire("search for what is not finite", DType::u8,
                                           {static_cast<std::int64_t>(EngineOps::stats_scratch(values.size()))});
      ops->grad_stats(stream, on_device + seen.size(), values, scratch);
      seen.push_back({unit, what});
    };
    decoder.forward_loss(stream, batch, engine, arena, losses, &observe);
    stream.copy(stats.data(), on_device, seen.size() * sizeof(GradStats));
    stream.synchronize();
  } catch (const Bug& full) {  // the arena is of the size that a step needs
    stream.synchronize();
    log_debug("{}", full.what());
    return {};
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (stats[i].non_finite == 0) continue;
    const std::string weight = non_finite_weight(engine, seen[i].unit);
    return describe(seen[i], spec) +
           (weight.empty() ? "" : fmt::format(", whose weight '{}' is not finite itself", weight));
  }
  return {};
}

std::string describe_streak(std::int64_t last, std::int64_t in_a_row) {
  if (in_a_row == 1) return fmt::format("step {} was skipped", last);
  return fmt::format("steps {} to {} were skipped, {} in a row", last - in_a_row + 1, last, in_a_row);
}

}  // namespace so
