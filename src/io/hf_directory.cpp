#include "io/hf_directory.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/quantities.h"
#include "io/contained_files.h"
#include "io/json_events.h"

namespace so {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t max_config_bytes = 16'000'000;
constexpr std::uint64_t max_index_bytes = 100'000'000;
constexpr std::uint64_t max_auxiliary_bytes = 512'000'000;  // of one file; beyond that it is data, not part of a model
constexpr std::uint64_t max_text_in_memory = 64'000'000;    // of a file that is held; of a larger one its descriptor is
constexpr const char* single_file = "model.safetensors";
constexpr const char* index_file = "model.safetensors.index.json";
constexpr const char* template_directory = "additional_chat_templates";  // as transformers names it

// {"metadata": {...}, "weight_map": {"name": "file", ...}}. What else stands at the top is skipped.
class IndexEvents : public JsonEvents {
 public:
  using JsonEvents::JsonEvents;
  std::map<std::string, std::string> weight_map;
  bool seen_weight_map = false;

  void on_null() override { value("null"); }
  void on_boolean(bool) override { value("a boolean"); }
  void on_unsigned(std::uint64_t) override { value("a number"); }
  void on_negative(std::int64_t) override { value("a number"); }
  void on_real(double, const std::string&) override { value("a number"); }

  void on_string(std::string& text) override {
    if (at_ != At::names) return value("a string");
    if (text.empty() || text == "." || text == ".." || text.find_first_of(std::string_view("/\\\0", 3)) != text.npos) {
      fail("{}: {} is not in a file of this directory but in '{}'", source(), where(), printable(text));
    }
    if (!weight_map.emplace(key_, std::move(text)).second) fail("{}: {} appears twice", source(), where());
  }
  void on_start_object() override {
    switch (at_) {
      case At::document:
        at_ = At::top;
        return;
      case At::weight_map:
        at_ = At::names;
        return;
      case At::skipped:
        ++depth_;
        return;
      default:
        refuse("an object");
    }
  }
  void on_end_object() override {
    if (at_ == At::skipped) {
      end_skipped();
    } else {
      at_ = At::top;
    }
  }
  void on_start_array() override {
    if (at_ != At::skipped) refuse("an array");
    ++depth_;
  }
  void on_end_array() override { end_skipped(); }
  void on_key(std::string& key) override {
    if (at_ == At::skipped) return;
    if (at_ == At::top) {
      at_ = key == "weight_map" ? At::weight_map : At::skipped;
      if (at_ == At::weight_map && std::exchange(seen_weight_map, true)) fail("{}: weight_map appears twice", source());
    }
    key_ = std::move(key);
  }

 protected:
  std::string where() const override {
    switch (at_) {
      case At::names:
        return fmt::format("tensor '{}'", printable(key_));
      case At::weight_map:
        return "weight_map";
      default:
        return "the index";
    }
  }

 private:
  enum class At { document, top, weight_map, names, skipped };
  void value(std::string_view kind) {
    if (at_ != At::skipped) refuse(kind);
    if (depth_ == 0) at_ = At::top;
  }
  void end_skipped() {
    if (--depth_ == 0) at_ = At::top;
  }

  At at_ = At::document;
  std::uint64_t depth_ = 0;  // of a skipped value
  std::string key_;
};

bool has_suffix(std::string_view text, std::string_view suffix) { return text.ends_with(suffix); }

bool is_auxiliary(std::string_view name) {
  static constexpr std::array exact{
      std::string_view("generation_config.json"),
      std::string_view("special_tokens_map.json"),
      std::string_view("vocab.json"),
      std::string_view("tekken.json"),
      std::string_view("added_tokens.json"),
      std::string_view("chat_template.json"),
      std::string_view("normalizer.json"),
      std::string_view("spiece.model"),
      std::string_view("USE_POLICY.md"),
      std::string_view("USAGE_POLICY"),
  };
  if (std::find(exact.begin(), exact.end(), name) != exact.end()) return true;
  if (name.starts_with("tokenizer") && (has_suffix(name, ".json") || has_suffix(name, ".model"))) return true;
  if (name.starts_with("tokenizer.model.")) return true;  // Mistral's "tokenizer.model.v3"
  if (name.starts_with("LICENSE") || name.starts_with("LICENCE") || name.starts_with("NOTICE")) return true;
  for (const std::string_view suffix : {"processor_config.json", ".txt", ".jinja", ".tiktoken", ".py"}) {
    if (has_suffix(name, suffix)) return true;
  }
  return false;
}

[[noreturn]] void refuse_without_weights(const fs::path& directory) {
  const std::string where = printable_path(directory);
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (path_exists(directory / name)) {
      fail(
          "{} has its weights in {}, a pickle that is not read here; convert it with transformers: "
          "AutoModelForCausalLM.from_pretrained('{}', dtype='auto').save_pretrained('NEW_DIRECTORY')",
          where, name, where);
    }
  }
  if (path_exists(directory / "adapter_model.safetensors")) {
    fail("{} holds an adapter, not a model; merge it into its base model first (PEFT: merge_and_unload)", where);
  }
  fail("{} has no weights: neither {} nor {}", where, single_file, index_file);
}

// Returns where a file of this name is to be written.
fs::path place_for(const fs::path& directory, const std::string& name) {
  if (const fs::path folder = fs::path(name).parent_path(); !folder.empty()) make_directories(directory / folder);
  return directory / name;
}

}  // namespace

std::map<std::string, std::string> parse_safetensors_index(std::string_view json, std::string_view source) {
  IndexEvents events{source};
  parse_json_events(json, events);
  if (!events.seen_weight_map) fail("{}: it has no weight_map", source);
  if (events.weight_map.empty()) fail("{}: its weight_map is empty", source);
  return std::move(events.weight_map);
}

HfDirectory::HfDirectory(const fs::path& directory) : directory_(directory) {
  if (!is_directory_path(directory)) {
    fail("{} is not a directory; give the path of a Hugging Face model directory", printable_path(directory));
  }
  if (!path_exists(directory / "config.json")) {
    fail("{} has no config.json; give the path of a Hugging Face model directory", printable_path(directory));
  }
  const ContainedFiles files(directory);
  config_json_ = text_of(files.open("config.json"), max_config_bytes);

  const bool single = path_exists(directory / single_file);
  const bool indexed = path_exists(directory / index_file);
  std::map<std::string, std::string> weight_map;
  if (single) {
    // transformers prefers the single file too.
    if (indexed) log_warning("{} has {} and {}: using the former", printable_path(directory), single_file, index_file);
    refuse_lfs_pointer(directory / single_file);
    shards_.emplace_back(files.open(single_file));
  } else if (indexed) {
    const std::string source = printable_path(directory / index_file);
    weight_map = parse_safetensors_index(text_of(files.open(index_file), max_index_bytes), source);
    std::set<std::string> shards;
    for (const auto& [name, file] : weight_map) shards.insert(file);
    for (const std::string& file : shards) {
      if (!path_exists(directory / file)) {
        fail("{} is missing, but {} lists it; the download or copy is not complete", printable_path(directory / file),
             index_file);
      }
      refuse_lfs_pointer(directory / file);
      shards_.emplace_back(files.open(file));
    }
  } else {
    refuse_without_weights(directory);
  }

  std::size_t count = 0;
  for (const SafetensorsReader& shard : shards_) count += shard.names().size();
  tensor_names_.reserve(count);  // the index points into it
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    for (const std::string& name : shards_[s].names()) {
      tensor_names_.push_back(name);
      const auto [other, added] = shard_of_tensor_.emplace(tensor_names_.back(), s);
      if (!added) {
        fail("tensor '{}' is in two shards: {} and {}", printable(name), printable_path(shards_[other->second].path()),
             printable_path(shards_[s].path()));
      }
      if (single) continue;
      const auto listed = weight_map.find(name);
      if (listed == weight_map.end()) {
        fail("tensor '{}' is in {}, but {} does not list it", printable(name), printable_path(shards_[s].path()),
             index_file);
      }
      if (listed->second != shards_[s].path().filename()) {
        fail("tensor '{}' is in {}, but {} lists it in {}", printable(name), printable_path(shards_[s].path()),
             index_file, printable(listed->second));
      }
    }
  }
  for (const auto& [name, file] : weight_map) {
    if (!contains(name)) {
      fail("{} lists tensor '{}' in {}, which does not have it", printable_path(directory / index_file),
           printable(name), printable(file));
    }
  }

  auxiliary_files_ = so::auxiliary_files(directory);
  for (const std::string& name : auxiliary_files_) files.open(name);
}

std::uint64_t HfDirectory::total_bytes() const {
  std::uint64_t total = 0;
  for (const SafetensorsReader& shard : shards_) total += shard.data_bytes();
  return total;
}

const SafetensorsReader& HfDirectory::shard_of(std::string_view name) const {
  const auto found = shard_of_tensor_.find(name);
  if (found == shard_of_tensor_.end()) fail("{} has no tensor '{}'", printable_path(directory_), printable(name));
  return shards_[found->second];
}

std::vector<std::string> auxiliary_files(const fs::path& directory) {
  std::vector<std::string> names;
  const auto add = [&](const fs::path& file, const std::string& name) {
    std::error_code ignored;
    if (!fs::is_regular_file(file, ignored)) return;
    if (fs::file_size(file, ignored) <= max_auxiliary_bytes) return names.push_back(name);
    log_warning("{} is too large to belong to a model and is not copied into the new one", printable_path(file));
  };
  for (const fs::path& file : entries_of(directory)) {
    const std::string name = file.filename().string();
    if (is_auxiliary(name)) add(file, name);
    if (name != template_directory || !is_directory_path(file)) continue;
    for (const fs::path& one : entries_of(file))
      if (one.extension() == ".jinja") add(one, name + "/" + one.filename().string());
  }
  return names;
}

void copy_auxiliary_files(const fs::path& from, const fs::path& to) {
  const ContainedFiles files(from);
  for (const std::string& name : auxiliary_files(from))
    copy_regular_file(files.open(name), place_for(to, name), max_auxiliary_bytes);
}

std::vector<HfDirectory::HeldFile> HfDirectory::open_auxiliary_files() const {
  const ContainedFiles files(directory_);
  std::vector<HeldFile> held;
  for (const std::string& name : auxiliary_files_) {
    File file = files.open(name);
    const FileStamp stamp = stamp_of(file);
    held.push_back({std::move(file), std::nullopt, stamp});
  }
  return held;
}

void HfDirectory::hold_auxiliary_files() {
  std::vector<HeldFile> held = open_auxiliary_files();
  for (HeldFile& each : held)
    if (each.file.size() <= max_text_in_memory) each.text = text_of(each.file, max_text_in_memory);
  held_ = std::move(held);
}

void HfDirectory::copy_auxiliary_files(const fs::path& to, const CopyFailure& on_failure) const {
  const std::vector<HeldFile> opened = held_ ? std::vector<HeldFile>() : open_auxiliary_files();
  const std::vector<HeldFile>& files = held_ ? *held_ : opened;
  const bool other_template = replaced_.contains("chat_template.jinja");
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string& name = auxiliary_files_[i];
    if (replaced_.contains(name)) continue;
    if (other_template && (name == "chat_template.json" || name.starts_with(template_directory))) continue;
    try {
      const HeldFile& held = files[i];
      if (held.text) {
        write_text_file_atomically(place_for(to, name), *held.text);
        continue;
      }
      if (stamp_of(held.file) != held.opened)
        fail("{} has changed since it was opened", printable_path(held.file.path()));
      copy_regular_file(held.file, place_for(to, name), max_auxiliary_bytes);
    } catch (const NoRoom&) {
      throw;
    } catch (const Error& error) {
      if (!on_failure) throw;
      on_failure(name, error.what());
    }
  }
  for (const auto& [name, text] : replaced_) write_text_file_atomically(place_for(to, name), text);
}

std::vector<Shard> plan_shards(std::span<const TensorSpec> tensors, std::uint64_t max_shard_bytes) {
  SO_CHECK(!tensors.empty() && max_shard_bytes > 0, "{} tensors, shards of {} bytes", tensors.size(), max_shard_bytes);
  std::vector<Shard> shards;
  Shard open;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = tensors[i].bytes();
    if (bytes > max_shard_bytes) {
      shards.push_back({{}, {i}, bytes});  // before the open shard, which goes on filling
      continue;
    }
    if (open.bytes + bytes > max_shard_bytes) shards.push_back(std::exchange(open, {}));
    open.tensors.push_back(i);
    open.bytes += bytes;
  }
  if (!open.tensors.empty()) shards.push_back(std::move(open));
  for (std::size_t s = 0; s < shards.size(); ++s) {
    shards[s].file = shards.size() == 1 ? std::string(single_file)
                                        : fmt::format("model-{:05d}-of-{:05d}.safetensors", s + 1, shards.size());
  }
  return shards;
}

HfModelWriter::HfModelWriter(const fs::path& directory, const std::vector<TensorSpec>& tensors,
                             std::uint64_t max_shard_bytes, FileWriters writers)
    : directory_(directory), writers_(writers) {
  for (const Shard& shard : plan_shards(tensors, max_shard_bytes)) {
    std::vector<TensorSpec> members;
    members.reserve(shard.tensors.size());
    for (const std::size_t i : shard.tensors) {
      SO_CHECK(shard_of_tensor_.emplace(tensors[i].name, shards_.size()).second, "tensor {} twice", tensors[i].name);
      members.push_back(tensors[i]);
    }
    shards_.emplace_back(directory / shard.file, members, std::map<std::string, std::string>{{"format", "pt"}},
                         writers);
    total_bytes_ += shard.bytes;
  }
}

void HfModelWriter::write(std::string_view name, std::uint64_t byte_offset, std::span<const std::byte> bytes) {
  const auto found = shard_of_tensor_.find(name);
  SO_CHECK(found != shard_of_tensor_.end(), "{} is not in the plan of {}", name, printable_path(directory_));
  shards_[found->second].write(name, byte_offset, bytes);
}

void HfModelWriter::finish() {
  for (SafetensorsWriter& shard : shards_) shard.finish();
  if (shards_.size() == 1 || writers_ == FileWriters::other_of_several) return;
  nlohmann::json index;
  index["metadata"]["total_size"] = total_bytes_;
  for (const auto& [name, shard] : shard_of_tensor_) {
    index["weight_map"][name] = shards_[shard].path().filename().string();
  }
  write_text_file_atomically(directory_ / index_file, index.dump(2) + "\n");
}

std::map<std::string, std::uint64_t> HfModelWriter::files() const {
  std::map<std::string, std::uint64_t> all;
  for (const SafetensorsWriter& shard : shards_) all.emplace(shard.path().filename().string(), shard.file_bytes());
  return all;
}

std::uint64_t HfModelWriter::written_bytes() const {
  std::uint64_t bytes = 0;
  for (const SafetensorsWriter& shard : shards_) bytes += shard.written_bytes();
  return bytes;
}

std::map<std::string, FileChecksum> HfModelWriter::checksums() const {
  std::map<std::string, FileChecksum> all;
  for (const SafetensorsWriter& shard : shards_) all.emplace(shard.path().filename().string(), shard.checksum());
  return all;
}

}  // namespace so
