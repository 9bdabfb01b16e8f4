// Hugging Face model directories: config.json, safetensors weights in one file or in shards with an index, and the
// tokenizer's and other small files beside them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/file.h"
#include "io/file_stamp.h"
#include "io/safetensors.h"

namespace so {

// Parses model.safetensors.index.json: tensor name -> shard file name. Untrusted input, as parse_safetensors_header.
// Shard names are plain file names: one with a directory in it is refused.
std::map<std::string, std::string> parse_safetensors_index(std::string_view json, std::string_view source);

// Names of the files that belong to a model beside its weights and config.json, sorted: generation_config.json, the
// tokenizer's files, chat templates ("additional_chat_templates/NAME.jinja", too), processors' configurations,
// licences; regular files of at most 512 MB. Not weights, index, training state.
std::vector<std::string> auxiliary_files(const std::filesystem::path& directory);
// Copies them into another directory, which must exist. Files that exist there are replaced. Links out of `from` are
// refused (io/contained_files.h).
void copy_auxiliary_files(const std::filesystem::path& from, const std::filesystem::path& to);

// A model directory opened for reading. The constructor validates it whole: every header, and the index against the
// shards (a missing shard; a tensor that is listed but absent, present but not listed, or in two shards), and that no
// file is a link out of the directory (io/contained_files.h). Const methods may be called from several threads.
class HfDirectory {
 public:
  explicit HfDirectory(const std::filesystem::path& directory);

  const std::filesystem::path& path() const { return directory_; }
  const std::string& config_json() const { return config_json_; }  // the text of config.json

  // All tensors in the order that reads the disk front to back: shard by shard, then by offset.
  const std::vector<std::string>& tensor_names() const { return tensor_names_; }
  bool contains(std::string_view name) const { return shard_of_tensor_.contains(name); }
  const TensorInfo& info(std::string_view name) const { return shard_of(name).info(name); }  // Error if absent
  std::uint64_t total_bytes() const;                                                         // of all tensors

  // As SafetensorsReader's.
  void read_into(std::string_view name, std::span<std::byte> out) const { shard_of(name).read_into(name, out); }
  void read_into(std::string_view name, std::uint64_t byte_offset, std::span<std::byte> out) const {
    shard_of(name).read_into(name, byte_offset, out);
  }
  std::span<const std::byte> bytes(std::string_view name) const { return shard_of(name).bytes(name); }

  // The weight files in order; shards()[i].names() are its tensors. When a shard has been loaded, drop_cache() on it
  // gives its pages back, so that loading a model does not push the model itself out of memory.
  const std::vector<SafetensorsReader>& shards() const { return shards_; }
  const SafetensorsReader& shard_of(std::string_view name) const;

  // As the functions above, of this directory. With `on_failure` the files that cannot be copied, for another reason
  // than a full disk, are left out, and it is told their names and why.
  using CopyFailure = std::function<void(const std::string& name, const char* why)>;
  const std::vector<std::string>& auxiliary_files() const { return auxiliary_files_; }
  void copy_auxiliary_files(const std::filesystem::path& to, const CopyFailure& on_failure = {}) const;
  // Reads them, or opens them where they are large, so that they are copied as they are now, also when the directory
  // has changed or is gone.
  void hold_auxiliary_files();
  // Has copies get these texts, by name, instead of its files or beside them. A chat_template.jinja among them stands
  // for all of the directory's chat templates.
  void replace_auxiliary_files(std::map<std::string, std::string> texts) { replaced_ = std::move(texts); }

 private:
  struct HeldFile {
    File file;
    std::optional<std::string> text;
    FileStamp opened;  // as it was then
  };
  std::vector<HeldFile> open_auxiliary_files() const;

  std::filesystem::path directory_;
  std::string config_json_;
  std::vector<SafetensorsReader> shards_;
  std::vector<std::string> tensor_names_;
  std::unordered_map<std::string_view, std::size_t> shard_of_tensor_;  // keys point into tensor_names_
  std::vector<std::string> auxiliary_files_;
  std::optional<std::vector<HeldFile>> held_;  // in the same order
  std::map<std::string, std::string> replaced_;
};

// One weight file of a model to be written.
struct Shard {
  std::string file;
  std::vector<std::size_t> tensors;  // indices into the list that was planned
  std::uint64_t bytes = 0;           // of its tensors
};

// Cuts a list of tensors into shards as transformers (huggingface_hub's split_state_dict_into_shards_factory) does:
// in order, a new shard when the next tensor would exceed the limit, a tensor larger than the limit alone in one. One
// shard is "model.safetensors", several are "model-00001-of-0000N.safetensors".
std::vector<Shard> plan_shards(std::span<const TensorSpec> tensors, std::uint64_t max_shard_bytes);

inline constexpr std::uint64_t default_max_shard_bytes = 5'000'000'000;

// Writes the weights of a model directory: the shards and, if there are several, their index. The constructor claims
// the space of all shards. Meant for an AtomicDirectory: until finish() returned the files are not complete.
class HfModelWriter {
 public:
  HfModelWriter(const std::filesystem::path& directory, const std::vector<TensorSpec>& tensors,
                std::uint64_t max_shard_bytes = default_max_shard_bytes, FileWriters writers = FileWriters::one);

  std::uint64_t total_bytes() const { return total_bytes_; }  // of the tensors
  std::size_t shard_count() const { return shards_.size(); }
  std::map<std::string, std::uint64_t> files() const;  // the shards, with their bytes

  // As SafetensorsWriter::write(): any thread, any order, every byte exactly once.
  void write(std::string_view name, std::uint64_t byte_offset, std::span<const std::byte> bytes);
  // Finishes every shard, then writes the index, which the first of several writers does. Call once, after all write()
  // returned.
  void finish();
  std::uint64_t written_bytes() const;  // by this writer, of the tensors
  // Returns the checksums of the shards. Call after finish(), as SafetensorsWriter's.
  std::map<std::string, FileChecksum> checksums() const;

 private:
  std::filesystem::path directory_;
  std::vector<SafetensorsWriter> shards_;
  std::map<std::string, std::size_t, std::less<>> shard_of_tensor_;
  std::uint64_t total_bytes_ = 0;
  FileWriters writers_;
};

}  // namespace so
