#include "checkpoint/selection_biases.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/bf16_arrays.h"
#include "base/error.h"
#include "base/file.h"

namespace so {

std::vector<float> read_selection_biases(const HfDirectory& directory, const DecoderSpec& spec,
                                         const StoredNames& names) {
  const std::vector<std::string> parameters = selection_bias_names(spec);
  const auto count = static_cast<std::size_t>(spec.experts.count);
  std::vector<float> all(parameters.size() * count);
  for (std::size_t layer = 0; layer < parameters.size(); ++layer) {
    if (parameters[layer].empty()) continue;
    const std::string name = names.stored(parameters[layer]);
    if (!directory.contains(name)) fail("{}: tensor '{}' is missing", printable_path(directory.path()), name);
    const std::string file = printable_path(directory.shard_of(name).path());
    const TensorInfo& info = directory.info(name);
    if (info.dtype != DType::f32 && info.dtype != DType::bf16)
      fail("{}: tensor '{}' is {}; it must be float32 or bfloat16", file, name, name_of(info.dtype));
    if (info.shape != std::vector<std::int64_t>{spec.experts.count})
      fail("{}: tensor '{}' has shape {}, config.json says [{}]", file, name, shape_string(info.shape),
           spec.experts.count);
    const std::span<float> values(all.data() + layer * count, count);
    if (info.dtype == DType::f32) {
      directory.read_into(name, std::as_writable_bytes(values));
    } else {
      std::vector<bf16> narrow(count);
      directory.read_into(name, std::as_writable_bytes(std::span(narrow)));
      widen_bf16(narrow.data(), values.data(), count);
    }
    if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }))
      fail("{}: tensor '{}' has a value that is not finite", file, name);
  }
  return all;
}

std::vector<TensorSpec> selection_bias_specs(const DecoderSpec& spec) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : selection_bias_names(spec))
    if (!name.empty()) specs.push_back({name, DType::f32, {spec.experts.count}});
  return specs;
}

}  // namespace so
