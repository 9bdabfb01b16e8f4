#include "model/initialize.h"

#include "base/normal_draw.h"

namespace so {
namespace {

bool is_bias(const Parameter& parameter) { return parameter.name.ends_with("bias"); }

}  // namespace

bool drawn(const Parameter& parameter) {
  const std::string& name = parameter.name;
  if (name.ends_with(".sinks") || name.ends_with(".router.bias")) return true;
  return parameter.shape.size() > 1 && !is_bias(parameter);
}

void initialize(const DecoderSpec& spec, const Parameter& parameter, std::uint64_t seed, std::int64_t begin,
                std::span<float> out) {
  if (!drawn(parameter)) {
    for (float& x : out) x = is_bias(parameter) ? 0.0f : 1.0f - spec.norm_offset;
    return;
  }
  std::uint64_t stream = mix_counter(seed);
  for (const char c : parameter.name) stream = mix_counter(stream ^ static_cast<unsigned char>(c));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto element = static_cast<std::uint64_t>(begin) + i;
    out[i] = static_cast<float>(spec.initializer_range * normal_draw(stream, element));
  }
}

}  // namespace so
