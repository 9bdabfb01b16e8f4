#include "checkpoint/moment_tensors.h"

#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/bf16_arrays.h"
#include "base/error.h"
#include "base/file.h"
#include "base/tensor.h"
#include "checkpoint/file_names.h"
#include "offload/engine.h"
#include "optim/moment_blocks.h"
#include "optim/moment_codec.h"

namespace so {
namespace {

class StoredMoments final : public ByteCodes {
 public:
  StoredMoments(Moment moment, std::vector<float> scales) : moment_(moment), scales_(std::move(scales)) {}

  void decode(std::int64_t begin, std::span<const std::uint8_t> codes, float* wide, bf16* narrow) const override {
    std::vector<float> values;
    if (wide == nullptr) {
      values.resize(codes.size());
      wide = values.data();
    }
    decode_moments(moment_, codes, scales_.data() + begin / moment_block, begin % moment_block, wide);
    if (narrow != nullptr) round_to_bf16(wide, narrow, codes.size());
  }

 private:
  const Moment moment_;
  const std::vector<float> scales_;
};

std::vector<float> read_scales(const SafetensorsReader& file, const std::string& name, std::int64_t blocks) {
  const std::string path = printable_path(file.path());
  if (!file.contains(name))
    fail("{}: tensor '{}' is missing, the scales of 8-bit moments; the file is damaged", path, printable(name));
  const TensorInfo& info = file.info(name);
  if (info.dtype != DType::f32 || info.shape != std::vector<std::int64_t>{blocks})
    fail("{}: tensor '{}' is {} {}, expected float32 [{}]", path, printable(name), name_of(info.dtype),
         shape_string(info.shape), blocks);
  std::vector<float> scales(static_cast<std::size_t>(blocks));
  file.read_into(name, 0, std::as_writable_bytes(std::span(scales)));
  for (std::size_t i = 0; i < scales.size(); ++i)
    if (!(scales[i] >= 0) || std::isinf(scales[i]))
      fail("{}: tensor '{}' holds {} (element {}), which is no scale; the file is damaged", path, printable(name),
           scales[i], i);
  return scales;
}

}  // namespace

std::shared_ptr<const ByteCodes> state_codes(const SafetensorsReader& file, const Parameter& parameter,
                                             StateArray array) {
  const TensorInfo& info = file.info(parameter.name);
  const bool moments = array != StateArray::master,
             known = info.dtype == DType::f32 || (moments && (info.dtype == DType::bf16 || info.dtype == DType::u8));
  if (!known || info.shape != parameter.shape)
    fail("{}: tensor '{}' is {} {}, expected {} {}", printable_path(file.path()), printable(parameter.name),
         name_of(info.dtype), shape_string(info.shape), moments ? "float32, bfloat16 or uint8" : "float32",
         shape_string(parameter.shape));
  if (info.dtype != DType::u8) return nullptr;
  return std::make_shared<const StoredMoments>(
      moment_of(array),
      read_scales(file, parameter.name + std::string(moment_scales_suffix), moment_blocks(parameter.size())));
}

}  // namespace so
