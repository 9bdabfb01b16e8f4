#include "checkpoint/source_tensors.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "checkpoint/fp8_tensors.h"
#include "io/mxfp4.h"

namespace so {
namespace {

constexpr std::string_view blocks_suffix = "_blocks", scales_suffix = "_scales";

// Buffers that old checkpoints carry and that the config determines anyway.
bool derived(std::string_view name) { return name.ends_with("rotary_emb.inv_freq"); }

std::string file_of(const HfDirectory& directory, const std::string& tensor) {
  return printable_path(directory.shard_of(tensor).path());
}

void require_shape(const HfDirectory& directory, const std::string& tensor, const std::vector<std::int64_t>& expected) {
  const TensorInfo& info = directory.info(tensor);
  if (info.shape != expected)
    fail("{}: tensor '{}' has shape {}, config.json says {}", file_of(directory, tensor), tensor,
         shape_string(info.shape), shape_string(expected));
}

void check_plain(const HfDirectory& directory, const Parameter& p, const std::string& tensor) {
  const TensorInfo& info = directory.info(tensor);
  if (info.dtype != DType::f32 && info.dtype != DType::bf16 && info.dtype != DType::f16)
    fail("{}: tensor '{}' is {}; weights must be float32, bfloat16 or float16", file_of(directory, tensor), tensor,
         name_of(info.dtype));
  require_shape(directory, tensor, p.shape);
}

void check_packed(const HfDirectory& directory, const Parameter& p, const std::string& name, const std::string& blocks,
                  const std::string& scales) {
  for (const auto& [there, other] : {std::pair(&blocks, &scales), std::pair(&scales, &blocks)})
    if (directory.contains(*there) && !directory.contains(*other))
      fail("{}: tensor '{}' is missing, which '{}' ({}) needs beside it", printable_path(directory.path()), *other,
           *there, file_of(directory, *there));
  if (directory.contains(name))
    fail("{}: tensor '{}' is there twice, quantised as '{}' ({}) too; remove one of them", file_of(directory, name),
         name, blocks, file_of(directory, blocks));
  for (const std::string* tensor : {&blocks, &scales})
    if (const DType dtype = directory.info(*tensor).dtype; dtype != DType::u8)
      fail("{}: tensor '{}' is {}; MXFP4 blocks and scales are uint8", file_of(directory, *tensor), *tensor,
           name_of(dtype));
  const std::int64_t experts = p.shape[0], columns = p.shape[1], rows = p.shape[2];
  if (columns % Mxfp4Matrix::block != 0)
    fail(
        "{}: tensor '{}' is of a parameter of shape {} by config.json, "
        "which MXFP4 cannot hold: its second dimension is no multiple of {}",
        file_of(directory, blocks), blocks, shape_string(p.shape), Mxfp4Matrix::block);
  require_shape(directory, blocks, {experts, rows, columns / Mxfp4Matrix::block, Mxfp4Matrix::block_bytes});
  require_shape(directory, scales, {experts, rows, columns / Mxfp4Matrix::block});
}

std::string_view without(std::string_view name, std::string_view suffix) {
  return name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : std::string_view();
}

// Versions of transformers differ in what they make of a copy with other values: version 4 drops it, version 5 does not
// tie the two. Either would be another model for somebody, so the file has to say which one it is.
void require_equal(const HfDirectory& directory, const std::string& parameter, const std::string& copy) {
  const TensorInfo &info = directory.info(parameter), &other = directory.info(copy);
  const auto refuse = [&](const char* how) {
    fail(
        "{}: config.json ties '{}' to '{}' (tie_word_embeddings), but the file's own '{}' "
        "{}; set tie_word_embeddings to false to train both, or remove '{}' from the file",
        printable_path(directory.shard_of(copy).path()), copy, parameter, copy, how, copy);
  };
  if (info.dtype != other.dtype) refuse("is stored in another number format");
  constexpr std::uint64_t piece = std::uint64_t{4} << 20;
  std::vector<std::byte> left, right;
  for (std::uint64_t at = 0; at < info.bytes(); at += piece) {
    left.resize(static_cast<std::size_t>(std::min(piece, info.bytes() - at)));
    right.resize(left.size());
    directory.read_into(parameter, at, left);
    directory.read_into(copy, at, right);
    if (left != right) refuse("has other values");
  }
}

}  // namespace

ParameterFiles::ParameterFiles(const HfDirectory& directory, const ParameterLayout& layout,
                               const std::vector<Copy>& copies, const std::string& model, const StoredNames& names) {
  std::vector<bool> packed(static_cast<std::size_t>(layout.count()));
  std::vector<std::shared_ptr<const ByteCodes>> fp8(static_cast<std::size_t>(layout.count()));
  const Fp8Tensors in_fp8(directory);
  for (int i = 0; i < layout.count(); ++i) {
    const Parameter& p = layout.parameter(i);
    const std::string& name = names_.emplace_back(names.stored(p.name));
    const std::string blocks = name + std::string(blocks_suffix), scales = name + std::string(scales_suffix);
    if (p.shape.size() == 3 && (directory.contains(blocks) || directory.contains(scales))) {
      check_packed(directory, p, name, blocks, scales);
      packed[static_cast<std::size_t>(i)] = true;
      ++quantised_;
      continue;
    }
    if (auto found = in_fp8.codes_of(p, name)) {
      fp8[static_cast<std::size_t>(i)] = std::move(found);
      ++in_fp8_;
      continue;
    }
    if (!directory.contains(name)) fail("{}: tensor '{}' is missing", printable_path(directory.path()), name);
    check_plain(directory, p, name);
  }
  const auto packed_at = [&](std::string_view parameter) {
    const int i = parameter.empty() ? -1 : layout.find(parameter);
    return i >= 0 && packed[static_cast<std::size_t>(i)] ? i : -1;
  };
  const auto is_in_fp8 = [&](std::string_view parameter) {
    const int i = parameter.empty() ? -1 : layout.find(parameter);
    return i >= 0 && fp8[static_cast<std::size_t>(i)] != nullptr;
  };
  for (const SafetensorsReader& shard : directory.shards())
    for (const std::string& name : shard.names()) {
      const std::string parameter = names.parameter(name);
      if (const int i = layout.find(parameter); i >= 0) {
        requests_.push_back({&shard, name, layout.range(i).begin, {}, nullptr, {}});
        requests_.back().codes = fp8[static_cast<std::size_t>(i)];
        continue;
      }
      if (const int i = packed_at(without(parameter, blocks_suffix)); i >= 0) {
        const std::string scales = name_of(i) + std::string(scales_suffix);
        requests_.push_back({&shard, name, layout.range(i).begin, {}, &directory.shard_of(scales), scales});
        continue;
      }
      if (names.carries(name)) {
        carried_.push_back({&shard, name, names.is_constant(name), names.is_prediction_head(name)});
        carried_.back().info();  // refuses a type that cannot be written again
        continue;
      }
      if (packed_at(without(parameter, scales_suffix)) >= 0 || derived(name)) continue;
      if (is_in_fp8(Fp8Tensors::matrix_of_scales(parameter))) continue;
      if (is_in_fp8(Fp8Tensors::matrix_of_input_scale(parameter))) {
        ++input_scales_;
        continue;
      }
      const auto copy = std::find_if(copies.begin(), copies.end(), [&](const Copy& c) { return c.name == name; });
      if (copy == copies.end())
        fail("{}: tensor '{}' belongs to no part of {}", printable_path(shard.path()), printable(name), model);
      check_plain(directory, layout.parameter(copy->parameter), name);
      require_equal(directory, name_of(copy->parameter), name);
      copies_.push_back(*copy);
    }
}

std::vector<ShardReader::Request> ParameterFiles::requests(
    const std::function<WeightForms(DType stored)>& forms) const {
  std::vector<ShardReader::Request> requests = requests_;
  // MXFP4 is widened to values that bf16 can hold, FP8 by its scales to such that only fp32 can.
  const auto stored = [](const ShardReader::Request& r) {
    if (r.codes) return DType::f32;
    return r.scales.empty() ? r.file->info(r.tensor).dtype : DType::bf16;
  };
  for (ShardReader::Request& r : requests) r.forms = forms(stored(r));
  return requests;
}

std::uint64_t ParameterFiles::bytes() const {
  std::uint64_t all = 0;
  for (const ShardReader::Request& r : requests_)
    all += r.info().bytes() + (r.scales.empty() ? 0 : r.scales_file->info(r.scales).bytes());
  return all;
}

std::size_t largest_packed_bytes(const ParameterLayout& layout) {
  std::size_t largest = 0;
  for (const Parameter& p : layout.parameters())
    if (p.shape.size() == 3 && p.shape[1] % Mxfp4Matrix::block == 0) {
      Mxfp4Matrix matrix;
      matrix.rows = p.shape[2], matrix.columns = p.shape[1];
      largest = std::max(largest, matrix.blocks_bytes() + matrix.scales_bytes());
    }
  return largest;
}

}  // namespace so
