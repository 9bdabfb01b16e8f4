#include "checkpoint/directory_dtype.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "base/file.h"
#include "base/file_system.h"
#include "io/hf_directory.h"
#include "model/model_dtype.h"

namespace so {
namespace {

std::optional<DType> stored_dtype(const HfDirectory& directory) {
  std::map<DType, std::uint64_t> elements;
  for (const std::string& name : directory.tensor_names()) {
    if (directory.shard_of(name).find_fp8(name) != nullptr) continue;  // no form that training writes
    const TensorInfo& tensor = directory.info(name);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      if (tensor.dtype == dtype) elements[dtype] += tensor.bytes() / size_of(dtype);
  }
  if (elements.empty()) return std::nullopt;
  return std::max_element(elements.begin(), elements.end(), [](auto& a, auto& b) { return a.second < b.second; })
      ->first;
}

}  // namespace

DType directory_dtype(std::optional<DType> asked, const std::filesystem::path& directory) {
  const std::string origin = (directory / "config.json").string(), config = read_text_file(origin, 16 << 20);
  std::optional<DType> stored;
  if (!asked && says_no_dtype(config, origin) &&
      (path_exists(directory / "model.safetensors") || path_exists(directory / "model.safetensors.index.json")))
    stored = stored_dtype(HfDirectory(directory));
  return model_dtype(asked, config, origin, stored);
}

}  // namespace so
