#include "model/initialize.h"

#include <algorithm>
#include <cmath>

#include "base/normal_draw.h"

namespace so {
namespace {

bool is_bias(const Parameter& parameter) { return parameter.name.ends_with("bias"); }
bool is_a_log(const Parameter& parameter) { return parameter.name.ends_with(".A_log"); }

// The start of a parameter's stream of draws.
std::uint64_t stream_of(const Parameter& parameter, std::uint64_t seed) {
  std::uint64_t stream = mix_counter(seed);
  for (const char c : parameter.name) stream = mix_counter(stream ^ static_cast<unsigned char>(c));
  return stream;
}

// Every element of what is neither drawn nor A_log.
float constant(const DecoderSpec& spec, const Parameter& parameter) {
  if (parameter.name.ends_with(".dt_bias") || parameter.name.ends_with(".layer_scalar")) return 1;
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
  if (!drawn(parameter) && !is_a_log(parameter)) return std::fill(out.begin(), out.end(), constant(spec, parameter));
  const std::uint64_t stream = stream_of(parameter, seed);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto element = static_cast<std::uint64_t>(begin) + i;
    if (is_a_log(parameter)) {
      const double even = (static_cast<double>(mix_counter(stream ^ element) >> 40) + 0.5) * 0x1p-24;
      out[i] = static_cast<float>(std::log(0.01 + even * (16 - 0.01)));
      continue;
    }
    out[i] = static_cast<float>(spec.initializer_range * normal_draw(stream, element));
  }
}

}  // namespace so
