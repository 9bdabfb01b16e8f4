#include "model/random_weights.h"

#include <algorithm>

#include "base/normal_draw.h"
#include "model/initialize.h"

namespace so {

std::vector<float> undrawn_values(const DecoderSpec& spec, const Parameter& parameter) {
  std::vector<float> values(static_cast<std::size_t>(parameter.size()));
  initialize(spec, parameter, 0, 0, values);
  return values;
}

void randomize(DeviceWeights& weights, const DecoderSpec& spec, const ParameterLayout& layout, Ops& ops,
               Stream& stream) {
  const auto range = static_cast<float>(spec.initializer_range);
  for (int p = 0; p < layout.count(); ++p) {
    const Parameter& parameter = layout.parameter(p);
    if (drawn(parameter)) {
      const std::uint64_t seed = mix_counter(1 ^ mix_counter(static_cast<unsigned>(p)));
      ops.random_normal(stream, weights.weight(p), seed, range);
      continue;
    }
    const std::vector<float> values = undrawn_values(spec, parameter);
    std::vector<bf16> narrow(values.size());
    std::transform(values.begin(), values.end(), narrow.begin(), [](float x) { return bf16(x); });
    const Tensor to = weights.weight(p);
    stream.copy(to.data(),
                weights.dtype() == DType::f32 ? static_cast<const void*>(values.data())
                                              : static_cast<const void*>(narrow.data()),
                to.bytes());
    stream.synchronize();  // the values leave scope
  }
  stream.synchronize();
}

}  // namespace so
