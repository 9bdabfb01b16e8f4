#include "checkpoint/directory_checks.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <set>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/quantities.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/file_names.h"
#include "checkpoint/trainer_state.h"
#include "io/hf_directory.h"
#include "io/safetensors.h"

namespace so {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& file) {
  std::error_code error;
  return fs::status(file, error).type() != fs::file_type::not_found;
}

std::optional<std::int64_t> parse_step(std::string_view text) {
  std::int64_t step = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (text.empty() || error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return step;
}

fs::path without_slash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

// One directory's check, from the list to what the files say of themselves.
class Checking {
 public:
  Checking(const fs::path& directory, const ChecksumsAsRead& list, const std::function<void(std::uint64_t)>& progress) {
    result_.directory = directory;
    result_.is_checkpoint = checkpoint_step(directory.filename().string()) || is_there(directory / trainer_state_file);
    compare_with_list(list, progress);
    look_at_state();
    for (const std::string& name : names_)
      if (name.ends_with(".safetensors")) look_at_header(name);
    if (result_.damage.empty()) look_at_index();
    std::sort(result_.damage.begin(), result_.damage.end(),
              [](const FileDamage& a, const FileDamage& b) { return a.file < b.file; });
  }
  DirectoryCheck take() { return std::move(result_); }

 private:
  fs::path at(const std::string& name) const { return result_.directory / name; }
  FileDamage* damage_of(const std::string& name) {
    for (FileDamage& damage : result_.damage)
      if (damage.file == name) return &damage;
    return nullptr;
  }
  void add(const std::string& name, const std::string& what) {
    if (FileDamage* known = damage_of(name))
      known->what += "; " + what;
    else
      result_.damage.push_back({name, what});
  }

  void compare_with_list(const ChecksumsAsRead& read, const std::function<void(std::uint64_t)>& progress) {
    if (!read.error.empty()) add(checksums_file, read.error);
    const std::optional<Checksums>& list = read.list;
    std::error_code error;
    for (fs::directory_iterator entry(result_.directory, error), end; !error && entry != end; entry.increment(error)) {
      std::error_code ignored;
      if (!entry->is_regular_file(ignored)) continue;
      const std::string name = entry->path().filename().string();
      const bool of_a_model = name.ends_with(".safetensors") || name.ends_with(".json");
      if (!of_a_model || name == checksums_file) continue;
      names_.insert(name);
      if (!list) result_.bytes += fs::file_size(entry->path(), ignored);
    }
    if (error) add("", fmt::format("cannot be listed: {}", error.message()));
    result_.files = names_.size();
    if (!list) return;
    result_.has_checksums = true;
    result_.files = list->files.size();
    result_.bytes = list->bytes();
    result_.step = list->step;
    if (list->step) result_.is_checkpoint = true;
    result_.damage = find_damage(result_.directory, *list, progress);
    // A weight file that was put there later would be read with the rest.
    for (const std::string& name : names_)
      if (name.ends_with(".safetensors") && !list->files.contains(name))
        add(name, fmt::format("is not in {}", checksums_file));
  }

  void look_at_state() {
    if (!result_.is_checkpoint) return;
    bool only_model = false;
    if (!is_there(at(trainer_state_file))) {
      if (!damage_of(trainer_state_file)) add(trainer_state_file, "is missing");
    } else if (!damage_of(trainer_state_file)) {
      try {
        const TrainerState state = read_trainer_state(at(trainer_state_file));
        only_model = state.only_model;
        const std::int64_t step = state.step;
        if (result_.step && *result_.step != step)
          add(trainer_state_file, fmt::format("is of step {}, {} of step {}", step, checksums_file, *result_.step));
        else
          result_.step = step;
      } catch (const std::exception& error) {
        add(trainer_state_file, error.what());
      }
    }
    if (only_model) return;
    for (const char* name : {first_moment_file, second_moment_file})
      if (!is_there(at(name)) && !damage_of(name)) add(name, "is missing");
  }

  void look_at_header(const std::string& name) {
    try {
      const SafetensorsReader file(at(name));
      const auto stored = file.metadata().find(step_metadata);
      if (stored == file.metadata().end()) return;
      if (result_.is_checkpoint && !result_.has_checksums && !damage_of(checksums_file))
        add(checksums_file, "is missing");
      const auto step = parse_step(stored->second);
      if (!step || !result_.step || *step == *result_.step) return;
      std::erase_if(result_.damage, [&](const FileDamage& damage) { return damage.file == name; });  // this says more
      add(name, fmt::format("is of step {}, the checkpoint of step {}", *step, *result_.step));
    } catch (const std::exception& error) {
      if (!damage_of(name)) add(name, error.what());
    }
  }

  void look_at_index() {
    try {
      const HfDirectory model(result_.directory);
    } catch (const std::exception& error) {
      add("", error.what());
    }
  }

  DirectoryCheck result_;
  std::set<std::string> names_;
};

DirectoryCheck check_with(const fs::path& directory, const ChecksumsAsRead& list,
                          const std::function<void(std::uint64_t)>& progress) {
  const auto start = std::chrono::steady_clock::now();
  DirectoryCheck result = Checking(directory, list, progress).take();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

std::string newest_whole_before(const fs::path& checkpoint) {
  const fs::path path = without_slash(checkpoint);
  const auto step = checkpoint_step(path.filename().string());
  auto all = CheckpointDirectory(path.has_parent_path() ? path.parent_path() : fs::path(".")).list();
  for (auto older = all.rbegin(); older != all.rend(); ++older) {
    if (step && older->step >= *step) continue;
    std::error_code error;
    if (fs::equivalent(older->path, path, error)) continue;
    if (check_directory(older->path).whole())
      return fmt::format("the newest whole checkpoint before it is {}: --resume {}", printable_path(older->path),
                         printable_path(older->path));
  }
  return "there is no whole checkpoint before it; start again with --overwrite_output_dir or another --output_dir";
}

[[noreturn]] void refuse(const fs::path& checkpoint, const std::vector<FileDamage>& damage) {
  const FileDamage& first = damage.front();
  fail("{} is damaged: it {}{}; {}", printable_path(first.file.empty() ? checkpoint : checkpoint / first.file),
       first.what, damage.size() > 1 ? fmt::format(" (and {} more)", damage.size() - 1) : "",
       newest_whole_before(checkpoint));
}

}  // namespace

ChecksumsAsRead::ChecksumsAsRead(const fs::path& directory) {
  try {
    list = read_checksums(directory);
  } catch (const std::exception& failure) {
    error = failure.what();
  }
}

DirectoryCheck check_directory(const fs::path& directory, const std::function<void(std::uint64_t)>& progress) {
  return check_with(directory, ChecksumsAsRead(directory), progress);
}

std::vector<fs::path> directories_to_check(const fs::path& directory) {
  std::vector<fs::path> found;
  for (const char* sign : {checksums_file, "model.safetensors", "model.safetensors.index.json", trainer_state_file})
    if (found.empty() && is_there(directory / sign)) found.push_back(directory);
  std::vector<std::pair<std::int64_t, fs::path>> checkpoints;
  std::error_code error, ignored;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    if (const auto step = checkpoint_step(entry->path().filename().string()); step && entry->is_directory(ignored))
      checkpoints.emplace_back(*step, entry->path());
  if (error) fail_io("list", directory, error.value());
  std::sort(checkpoints.begin(), checkpoints.end());
  for (auto& [step, path] : checkpoints) found.push_back(std::move(path));
  return found;
}

ResumeCheck::ResumeCheck(fs::path checkpoint) : checkpoint_(std::move(checkpoint)), read_(checkpoint_) {}

void ResumeCheck::require_whole_state() const {
  if (!read_.error.empty()) fail("{}; {}", read_.error, newest_whole_before(checkpoint_));
  if (!read_.list) return;
  const auto state = read_.list->files.find(trainer_state_file);
  if (state == read_.list->files.end())
    refuse(checkpoint_, {{checksums_file, fmt::format("does not list {}", trainer_state_file)}});
  if (const auto damage = find_damage(checkpoint_, {read_.list->step, {*state}}); !damage.empty())
    refuse(checkpoint_, damage);
}

void ResumeCheck::require_whole() const {
  DirectoryCheck check;
  {
    ProgressReport progress("checking " + checkpoint_.string());
    const std::uint64_t total = std::max<std::uint64_t>(1, read_.list ? read_.list->bytes() : 0);
    check = check_with(checkpoint_, read_, [&](std::uint64_t bytes) {
      progress.update(std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total)), format_bytes(total));
    });
  }
  if (!check.whole()) refuse(checkpoint_, check.damage);
  if (!check.has_checksums) {
    log_warning("{} has no {}: a version that wrote none made it, and damage in it would not be noticed",
                checkpoint_.string(), checksums_file);
    return;
  }
  log_info("checked {}: {} files as they were written, {} in {:.3g} s ({:.3g} GB/s)", checkpoint_.string(), check.files,
           format_bytes(check.bytes), check.seconds, static_cast<double>(check.bytes) / 1e9 / check.seconds);
}

}  // namespace so
