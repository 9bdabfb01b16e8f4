#include "checkpoint/state_files.h"

#include <span>
#include <string_view>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/file_names.h"
#include "checkpoint/finite_state.h"
#include "checkpoint/rank_files.h"
#include "checkpoint/source_model.h"
#include "offload/engine.h"

namespace so {
namespace {

constexpr std::string_view word_of(StateArray array) {
  return array == StateArray::master ? "weight" : array == StateArray::first_moment ? "first moment" : "second moment";
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
  const auto specs = trained_specs(engine.layout(), DType::f32);
  const std::map<std::string, std::string> metadata{{step_metadata, std::to_string(step)}};
  const auto add = [&](StateArray array, const char* file) {
    arrays_.push_back({array, file, SafetensorsWriter(directory / file, specs, metadata, writers_of(engine.ranks()))});
  };
  if (engine.formats().exported != DType::f32) add(StateArray::master, master_file);
  add(StateArray::first_moment, first_moment_file);
  add(StateArray::second_moment, second_moment_file);
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
      array.writer.write(name, static_cast<std::uint64_t>(inside.begin) * sizeof(float), std::as_bytes(here));
    });
  });
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
