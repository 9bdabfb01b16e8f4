#include "model/initialize.h"

#include <algorithm>
#include <cmath>

#include "base/normal_draw.h"

namespace so {
namespace {

bool is_bias(const Parameter& parameter) { return parameter.name.ends_with("bias"); }
bool is_a_log(const Parameter& parameter) { return parameter.name.ends_with(".A_log"); }
bool is_dt_bias(const Parameter& parameter) { return parameter.name.ends_with(".dt_bias"); }

// The start of a parameter's stream of draws.
std::uint64_t stream_of(const Parameter& parameter, std::uint64_t seed) {
  std::uint64_t stream = mix_counter(seed);
  for (const char c : parameter.name) stream = mix_counter(stream ^ static_cast<unsigned char>(c));
  return stream;
}

// A number between 0 and 1, both excluded, drawn evenly.
double even_draw(std::uint64_t stream, std::uint64_t element) {
  return (static_cast<double>(mix_counter(stream ^ element) >> 40) + 0.5) * 0x1p-24;
}

// Returns a bias whose softplus is a step drawn evenly by its logarithm, as transformers begins Mamba2.
double step_bias(const StateSpaceSpec& space, double even) {
  const double least = std::log(std::max(space.least_step, 1e-30)), most = std::log(space.most_step);
  const double step = std::max({std::exp(least + even * (most - least)), space.floor_step, 1e-30});
  return step + std::log(-std::expm1(-step));
}

// A head's decay: state spaces begin with 1, 2, 3, ..., delta layers with what is drawn.
double a_log(const DecoderSpec& spec, std::uint64_t stream, std::uint64_t element) {
  if (spec.has_state_space()) return std::log(static_cast<double>(element) + 1);
  return std::log(0.01 + even_draw(stream, element) * (16 - 0.01));
}

// Every element of what is neither drawn nor of a state's decay.
float constant(const DecoderSpec& spec, const Parameter& parameter) {
  if (is_dt_bias(parameter) || parameter.name.ends_with(".layer_scalar")) return 1;
  if (is_bias(parameter)) return 0;
  return parameter.name.ends_with(".linear_attn.norm.weight") ? 1 : 1 - spec.norm_offset;
}

}  // namespace

bool drawn(const Parameter& parameter) {
  const std::string& name = parameter.name;
  if (name.ends_with(".sinks") || name.ends_with(".router.bias")) return true;
  return parameter.shape.size() > 1 && !is_bias(parameter);
}

void initialize(const DecoderSpec& spec, const Parameter& parameter, std::uint64_t seed, std::int64_t begin,
                std::span<float> out) {
  const bool draws_steps = is_dt_bias(parameter) && spec.has_state_space();
  if (!drawn(parameter) && !is_a_log(parameter) && !draws_steps)
    return std::fill(out.begin(), out.end(), constant(spec, parameter));
  const std::uint64_t stream = stream_of(parameter, seed);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto element = static_cast<std::uint64_t>(begin) + i;
    if (is_a_log(parameter))
      out[i] = static_cast<float>(a_log(spec, stream, element));
    else if (draws_steps)
      out[i] = static_cast<float>(step_bias(spec.state_space, even_draw(stream, element)));
    else
      out[i] = static_cast<float>(spec.initializer_range * normal_draw(stream, element));
  }
}

}  // namespace so
