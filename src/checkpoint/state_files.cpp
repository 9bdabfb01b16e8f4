#include "checkpoint/state_files.h"

#include <span>
#include <string_view>

#include "base/bf16_arrays.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/file_names.h"
#include "checkpoint/finite_state.h"
#include "checkpoint/rank_files.h"
#include "checkpoint/source_model.h"
#include "offload/engine.h"
#include "optim/moment_blocks.h"
#include "optim/moment_codec.h"

namespace so {
namespace {

constexpr std::string_view word_of(StateArray array) {
  return array == StateArray::master ? "weight" : array == StateArray::first_moment ? "first moment" : "second moment";
}

// The tensors of one array's file.
std::vector<TensorSpec> specs_of(const ParameterLayout& layout, DType dtype) {
  std::vector<TensorSpec> specs = trained_specs(layout, dtype);
  if (dtype != DType::u8) return specs;
  for (const Parameter& p : layout.parameters())
    if (p.trained) specs.push_back({p.name + std::string(moment_scales_suffix), DType::f32, {moment_blocks(p.size())}});
  return specs;
}

}  // namespace

StateFiles::StateFiles(OffloadEngine& engine, const ModelFiles& source, const std::filesystem::path& directory,
                       const std::filesystem::path& destination, std::int64_t step, bool only_model)
    : engine_(engine),
      destination_(destination),
      // The weights are worth keeping without the others.
      model_(engine, source, directory, destination, default_max_shard_bytes,
             [&](const std::string& name, const char* why) {
               log_error("{} is saved without {}: {}", printable_path(destination), name, why);
             }) {
  if (only_model) return;
  const std::map<std::string, std::string> metadata{{step_metadata, std::to_string(step)}};
  const auto add = [&](StateArray array, DType dtype, const char* file) {
    arrays_.push_back(
        {array, dtype, file,
         SafetensorsWriter(directory / file, specs_of(engine.layout(), dtype), metadata, writers_of(engine.ranks()))});
  };
  const NumberFormats& formats = engine.formats();
  if (formats.exported != DType::f32) add(StateArray::master, DType::f32, master_file);
  add(StateArray::first_moment, formats.moments, first_moment_file);
  add(StateArray::second_moment, formats.moments, second_moment_file);
}

void StateFiles::write(Array& array, const Bucket& bucket) {
  if (bucket.frozen()) return;
  const ParameterLayout& layout = engine_.layout();
  engine_.read_state(array.array, bucket.range(), [&](std::int64_t begin, std::span<const float> values) {
    const Range piece{begin, begin + static_cast<std::int64_t>(values.size())};
    for_each_part(layout, piece, [&](int p, Range inside, Range part) {
      const std::string& name = layout.parameter(p).name;
      const std::span<const float> here =
          values.subspan(static_cast<std::size_t>(part.begin - begin), static_cast<std::size_t>(part.size()));
      require_finite_for_save(DType::f32, here.data(), here.size(), name, word_of(array.array), destination_);
      write_values(array, name, inside.begin, here);
    });
  });
}

void StateFiles::write_values(Array& array, const std::string& name, std::int64_t element,
                              std::span<const float> values) {
  const auto at = static_cast<std::uint64_t>(element) * size_of(array.dtype);
  if (array.dtype == DType::f32) return array.writer.write(name, at, std::as_bytes(values));
  if (array.dtype == DType::bf16) {
    std::vector<bf16> narrow(values.size());
    round_to_bf16(values.data(), narrow.data(), values.size());
    return array.writer.write(name, at, std::as_bytes(std::span(narrow)));
  }
  SO_CHECK(element % moment_block == 0, "codes of '{}' from element {} on", name, element);
  std::vector<std::uint8_t> codes(values.size());
  std::vector<float> scales(static_cast<std::size_t>(moment_blocks(std::ssize(values))));
  encode_moments(moment_of(array.array), values, codes.data(), scales.data());
  array.writer.write(name, at, std::as_bytes(std::span(codes)));
  array.writer.write(name + std::string(moment_scales_suffix),
                     static_cast<std::uint64_t>(element / moment_block) * sizeof(float),
                     std::as_bytes(std::span(scales)));
}

void StateFiles::write_bucket(const Bucket& bucket) {
  model_.write_bucket(bucket);
  for (Array& array : arrays_) write(array, bucket);
}

void StateFiles::finish() {
  model_.finish();
  for (Array& array : arrays_) array.writer.finish();
}

std::map<std::string, FileChecksum> StateFiles::checksums() const {
  std::map<std::string, FileChecksum> all = model_.checksums();
  for (const Array& array : arrays_) all.emplace(array.file, array.writer.checksum());
  return all;
}

std::map<std::string, std::uint64_t> StateFiles::files() const {
  std::map<std::string, std::uint64_t> all = model_.files();
  for (const Array& array : arrays_) all.emplace(array.file, array.writer.file_bytes());
  return all;
}

std::uint64_t StateFiles::data_bytes() const {
  std::uint64_t bytes = model_.data_bytes();
  for (const Array& array : arrays_) bytes += array.writer.data_bytes();
  return bytes;
}

std::uint64_t StateFiles::written_bytes() const {
  std::uint64_t bytes = model_.written_bytes();
  for (const Array& array : arrays_) bytes += array.writer.written_bytes();
  return bytes;
}

}  // namespace so
