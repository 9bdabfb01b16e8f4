#include "checkpoint/fp8_tensors.h"

#include <cstring>

#include "base/bf16_arrays.h"
#include "base/error.h"
#include "base/finite.h"
#include "base/tensor.h"
#include "model/config.h"

namespace so {
namespace {

constexpr std::string_view fp8_scales_suffix = "_scale_inv", fp8_input_scale = "activation_scale",
                           fp8_matrix = "weight";

std::int64_t fp8_blocks(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }

}  // namespace

Fp8Tensors::Fp8Tensors(const HfDirectory& directory) : directory_(directory) {
  const ConfigReader config(directory.config_json(), (directory.path() / "config.json").string());
  constexpr auto key = "weight_block_size";
  auto quantised = config.object("quantization_config");
  if (!quantised) quantised = text_part(config).object("quantization_config");
  if (!quantised || !quantised->has(key)) return;
  const std::vector<std::int64_t> size = quantised->whole_numbers(key);
  if (size.size() != 2 || size[0] < 1 || size[1] < 1)
    quantised->refuse(key, "expected the rows and columns of a block, as [128, 128], or null");
  block_rows_ = size[0], block_columns_ = size[1];
}

std::vector<float> Fp8Tensors::read_scales(const std::string& name) const {
  const TensorInfo& info = directory_.info(name);
  const std::string file = printable_path(directory_.shard_of(name).path());
  if (info.dtype != DType::f32 && info.dtype != DType::bf16)
    fail("{}: tensor '{}' is {}; the scales of FP8 weights must be float32 or bfloat16", file, printable(name),
         name_of(info.dtype));
  std::vector<std::byte> stored(static_cast<std::size_t>(info.bytes()));
  directory_.read_into(name, stored);
  std::vector<float> values(stored.size() / size_of(info.dtype));
  if (info.dtype == DType::bf16) {
    std::vector<bf16> narrow(values.size());
    std::memcpy(narrow.data(), stored.data(), stored.size());
    widen_bf16(narrow.data(), values.data(), values.size());
  } else {
    std::memcpy(values.data(), stored.data(), stored.size());
  }
  if (const std::size_t at = find_non_finite(values); at < values.size())
    fail("{}: tensor '{}' holds a scale that is not finite (element {}); the file is damaged", file, printable(name),
         at);
  return values;
}

std::shared_ptr<const ByteCodes> Fp8Tensors::codes_of(const Parameter& p, const std::string& name) const {
  const TensorInfo* codes = directory_.contains(name) ? directory_.shard_of(name).find_fp8(name) : nullptr;
  if (codes == nullptr) return nullptr;
  const std::string file = printable_path(directory_.shard_of(name).path());
  if (p.shape.size() != 2)
    fail("{}: tensor '{}' is in FP8, which only matrices can be here; it has shape {}", file, printable(name),
         shape_string(codes->shape));
  if (codes->shape != p.shape)
    fail("{}: tensor '{}' has shape {}, config.json says {}", file, printable(name), shape_string(codes->shape),
         shape_string(p.shape));
  const std::string scales = name + std::string(fp8_scales_suffix);
  if (!directory_.contains(scales))
    fail("{}: tensor '{}' is missing, which '{}' ({}) needs beside it: it is in FP8", printable_path(directory_.path()),
         printable(scales), printable(name), file);
  Fp8Scales result{.columns = p.shape[1], .block_rows = p.shape[0], .block_columns = p.shape[1], .values = {}};
  const std::vector<std::int64_t>& shape = directory_.info(scales).shape;
  const std::vector<std::int64_t> by_block{fp8_blocks(p.shape[0], block_rows_), fp8_blocks(p.shape[1], block_columns_)};
  result.values = read_scales(scales);
  if (result.values.size() == 1) return std::make_shared<const Fp8Codes>(std::move(result));
  if (shape != by_block)
    fail("{}: tensor '{}' has shape {}; one scale, or {} of blocks of {} x {}, would fit '{}', which is {}",
         printable_path(directory_.shard_of(scales).path()), printable(scales), shape_string(shape),
         shape_string(by_block), block_rows_, block_columns_, printable(name), shape_string(p.shape));
  result.block_rows = block_rows_, result.block_columns = block_columns_;
  return std::make_shared<const Fp8Codes>(std::move(result));
}

std::string Fp8Tensors::matrix_of_scales(std::string_view tensor) {
  return tensor.ends_with(fp8_scales_suffix) ? std::string(tensor.substr(0, tensor.size() - fp8_scales_suffix.size()))
                                             : "";
}

std::string Fp8Tensors::matrix_of_input_scale(std::string_view tensor) {
  if (!tensor.ends_with(fp8_input_scale)) return "";
  return std::string(tensor.substr(0, tensor.size() - fp8_input_scale.size())) + std::string(fp8_matrix);
}

}  // namespace so
