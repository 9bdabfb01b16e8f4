#include "model/initialize.h"

#include "base/normal_draw.h"

namespace so {
void initialize(const DecoderSpec& spec, const Parameter& parameter, std::uint64_t seed, std::int64_t begin,
                std::span<float> out) {
  const std::string& name = parameter.name;
  const bool drawn = name.ends_with(".sinks") || name.ends_with(".router.bias");  // vectors, but not norms
  const bool bias = name.ends_with("bias");
  if (!drawn && (bias || parameter.shape.size() == 1)) {
    for (float& x : out) x = bias ? 0.0f : 1.0f;
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
