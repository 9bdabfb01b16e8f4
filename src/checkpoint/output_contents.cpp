#include "checkpoint/output_contents.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/json_tree.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/file_names.h"
#include "checkpoint/trainer_state.h"
#include "io/checksums.h"
#include "io/hf_directory.h"

namespace so {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t max_small_file = 64 << 20;

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool is_checkpoint_name(std::string_view name) { return checkpoint_step(name).has_value(); }

// Names under which a run writes into its output directory, other than the model's.
bool is_top_name(const std::string& name) {
  return name == "metrics.jsonl" || name == "config.json" || name == checksums_file || is_weight_file_name(name);
}

// Neither follows a link nor throws.
fs::file_type type_of(const fs::path& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type();
}

std::string first_bytes(const fs::path& file, std::uint64_t most) {
  const File opened = File::open(file);
  std::string text(static_cast<std::size_t>(std::min(opened.size(), most)), '\0');
  opened.pread_exact(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

// Whether it begins as MetricsLog begins, or is empty, as a run that was killed at once leaves it.
bool is_our_metrics(const fs::path& file) {
  if (type_of(file) != fs::file_type::regular) return false;
  const std::string text = first_bytes(file, 1 << 20);
  if (text.empty()) return true;
  const auto line = json_tree(std::string_view(text).substr(0, text.find('\n')));
  if (!line.is_object() || !line.contains("step")) return false;
  return line.contains("reference_tflops") || line.contains("eval_loss") || line.contains("summary") ||
         line.contains("start");
}

// Other programs give event files the same names, but none has this scalar.
bool is_our_event_file(const fs::path& file) {
  return file.filename().string().starts_with("events.out.tfevents.") &&
         first_bytes(file, 1 << 16).find("train/reference_tflops") != std::string::npos;
}

bool is_our_state(const fs::path& file) {
  if (type_of(file) != fs::file_type::regular) return false;
  try {
    read_trainer_state(file);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Says whether versions without a record put such a file into a checkpoint. Texts and programs that publishers add do
// not count: they cannot be told from notes.
bool is_old_checkpoint_file(const std::string& name) {
  static constexpr std::array names{
      "config.json",     checksums_file,      trainer_state_file,       master_file,
      first_moment_file, second_moment_file,  "generation_config.json", "special_tokens_map.json",
      "tokenizer.json",  "tokenizer.model",   "tokenizer_config.json",  "vocab.json",
      "merges.txt",      "added_tokens.json", "chat_template.json",     "chat_template.jinja"};
  return is_weight_file_name(name) || std::find(names.begin(), names.end(), name) != names.end();
}

FileNames files_by_name(const fs::path& directory) {
  FileNames ours;
  const auto add = [&](const std::string& name) {
    if (is_plain_file(directory, name)) ours.insert(name);
  };
  if (is_our_metrics(directory / "metrics.jsonl"))
    for (const std::string& name : files_in(directory, {}, 0))
      if (is_top_name(name)) add(name);
  for (const fs::path& path : entries_of(directory)) {
    const std::string name = path.filename().string();
    if (type_of(path) != fs::file_type::directory) continue;
    if (is_checkpoint_name(name) && is_our_state(path / trainer_state_file)) {
      for (const std::string& file : files_in(path, {}, 0))
        if (is_old_checkpoint_file(file)) add(name + "/" + file);
    } else if (name == "runs") {
      for (const std::string& file : files_in(path, {}, 0))
        if (is_plain_file(path, file) && is_our_event_file(path / file)) add(name + "/" + file);
    }
  }
  return ours;
}

bool same_bytes(const fs::path& a, const fs::path& b) {
  std::error_code error;
  const auto size = fs::file_size(a, error);
  if (error || size > max_small_file || size != fs::file_size(b, error) || error) return false;
  return read_text_file(a, max_small_file) == read_text_file(b, max_small_file);
}

std::vector<std::string> foreign_files(const fs::path& directory, const FileNames& ours, const fs::path& auxiliary) {
  FileNames foreign;
  const auto look_at = [&](const std::string& name) {
    if (!ours.contains(name)) foreign.insert(name);
  };
  for (const fs::path& path : entries_of(directory)) {
    const std::string name = path.filename().string();
    if (is_top_name(name) || (is_checkpoint_name(name) && type_of(path) != fs::file_type::directory)) {
      look_at(name);
    } else if (name == export_directory || (name == "runs" && type_of(path) != fs::file_type::directory)) {
      foreign.insert(name);
    } else if (is_checkpoint_name(name)) {
      for (const std::string& file : files_in(path, name + "/", 8)) look_at(file);
    }
  }
  std::error_code ignored;
  if (auxiliary.empty() || !fs::is_directory(auxiliary, ignored) || fs::equivalent(auxiliary, directory, ignored))
    return {foreign.begin(), foreign.end()};
  for (const std::string& name : auxiliary_files(auxiliary)) {
    const std::string folder = fs::path(name).parent_path().string();
    if (const auto type = type_of(directory / folder);
        !folder.empty() && type != fs::file_type::directory && type != fs::file_type::not_found)
      foreign.insert(folder);
    else if (type_of(directory / name) != fs::file_type::not_found &&
             !(is_plain_file(directory, name) && same_bytes(directory / name, auxiliary / name)))
      look_at(name);
  }
  return {foreign.begin(), foreign.end()};
}

}  // namespace

bool is_weight_file_name(const std::string& name) {
  if (name == "model.safetensors" || name == "model.safetensors.index.json") return true;
  // model-00001-of-00002.safetensors; more digits where there are more shards.
  constexpr std::string_view head = "model-", middle = "-of-", tail = ".safetensors";
  if (!name.starts_with(head) || !name.ends_with(tail)) return false;
  const std::string_view numbers = std::string_view(name).substr(head.size(), name.size() - head.size() - tail.size());
  const auto at = numbers.find(middle);
  if (at == numbers.npos) return false;
  const std::string_view index = numbers.substr(0, at), count = numbers.substr(at + middle.size());
  return index.size() >= 5 && count.size() >= index.size() && all_digits(index) && all_digits(count);
}

OutputContents look_into(const fs::path& directory, const fs::path& auxiliary) {
  OutputContents contents;
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) return contents;
  const auto recorded = OwnFiles(directory).read();
  contents.recorded = recorded.has_value();
  if (!recorded) {
    contents.ours = files_by_name(directory);
  } else {
    for (const std::string& name : *recorded)
      if (is_plain_file(directory, name)) contents.ours.insert(name);
  }
  contents.foreign = foreign_files(directory, contents.ours, auxiliary);
  return contents;
}

std::string describe(const FileNames& names) {
  std::map<std::string, int> directories;
  std::string text;
  const auto append = [&](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  for (const std::string& name : names) {
    if (const auto slash = name.find('/'); slash != name.npos)
      ++directories[name.substr(0, slash)];
    else
      append(printable(name));
  }
  for (const auto& [directory, count] : directories)
    append(fmt::format("{} ({} file{})", printable(directory), count, count == 1 ? "" : "s"));
  return text;
}

}  // namespace so
