#include "checkpoint/checkpoint_directory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/quantities.h"
#include "checkpoint/file_names.h"
#include "checkpoint/trainer_state.h"
#include "io/atomic_directory.h"
#include "io/checksums.h"
#include "io/own_files.h"

namespace so {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "checkpoint-";

}  // namespace

std::optional<std::int64_t> checkpoint_step(std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  std::int64_t step = 0;
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || stop != name.data() + name.size() || step < 0) return std::nullopt;
  if (name != std::to_string(step)) return std::nullopt;  // checkpoint-007 is none of ours
  return step;
}

fs::path CheckpointDirectory::path_of(std::int64_t step) const {
  SO_CHECK(step >= 0, "step {}", step);
  return path() / fmt::format("{}{}", prefix, step);
}

std::vector<Checkpoint> CheckpointDirectory::list() const { return list({trainer_state_file}); }

std::vector<Checkpoint> CheckpointDirectory::list_with_damaged() const {
  return list({trainer_state_file, checksums_file});
}

// With any of these files.
std::vector<Checkpoint> CheckpointDirectory::list(std::initializer_list<const char*> signs) const {
  std::vector<Checkpoint> found;
  std::error_code error;
  const fs::path directory = path();
  fs::directory_iterator entries(directory, error);
  if (error == std::errc::no_such_file_or_directory) return found;
  if (error) fail_io("list", directory, error.value());
  for (const auto& entry : entries) {
    const auto step = checkpoint_step(entry.path().filename().string());
    const auto has = [&](const char* file) { return fs::is_regular_file(entry.path() / file, error); };
    if (step && std::any_of(signs.begin(), signs.end(), has)) found.push_back({*step, entry.path()});
  }
  std::sort(found.begin(), found.end(), [](const Checkpoint& a, const Checkpoint& b) { return a.step < b.step; });
  return found;
}

std::optional<Checkpoint> CheckpointDirectory::latest() const {
  auto all = list();
  if (all.empty()) return std::nullopt;
  return std::move(all.back());
}

std::optional<Checkpoint> CheckpointDirectory::latest_up_to(std::int64_t step) const {
  auto all = list();
  std::erase_if(all, [&](const Checkpoint& checkpoint) { return checkpoint.step > step; });
  if (all.empty()) return std::nullopt;
  return std::move(all.back());
}

std::vector<Checkpoint> CheckpointDirectory::rotate(int save_total_limit,
                                                    const std::function<bool(const Checkpoint&)>& removable) const {
  if (save_total_limit <= 0) return {};
  auto all = list();
  const auto keep = static_cast<std::size_t>(save_total_limit);
  if (all.size() <= keep) return {};
  all.resize(all.size() - keep);
  if (removable) std::erase_if(all, [&](const Checkpoint& checkpoint) { return !removable(checkpoint); });
  for (const Checkpoint& checkpoint : all) remove_directory_atomically(checkpoint.path);
  return all;
}

int CheckpointDirectory::newest_beside(std::int64_t best, int save_total_limit) const {
  if (best == 0 || save_total_limit <= 0) return save_total_limit;
  const auto all = list();
  const int fewer = std::max(1, save_total_limit - 1);
  const auto newest = all.end() - std::min<std::ptrdiff_t>(fewer, std::ssize(all));
  const bool older = std::any_of(all.begin(), newest, [&](const Checkpoint& c) { return c.step == best; });
  return older ? fewer : save_total_limit;
}

void remove_stale_temporaries_of_runs(const fs::path& directory) {
  remove_stale_temporaries(directory, [](std::string_view name) {
    return checkpoint_step(name) || name == export_directory || name == init_directory;
  });
  for (const char* file : {"metrics.jsonl", own_files_record}) remove_stale_siblings(directory / file);
}

void require_writable(const fs::path& directory) {
  if (path_exists(directory) && !is_directory_path(directory)) {
    fail("{} is not a directory; choose another output directory", printable_path(directory));
  }
  make_directories(directory);
  const fs::path probe = directory / fmt::format(".write-test-{}", ::getpid());
  ::unlink(probe.c_str());  // of a process that had our number and was killed
  try {
    File file = File::create_new(probe);
    file.write_all(std::string_view("x"));
    file.close();
  } catch (...) {
    ::unlink(probe.c_str());
    throw;
  }
  if (::unlink(probe.c_str()) != 0) fail_io("remove", probe, errno);
}

void require_free_space(const fs::path& path, std::uint64_t bytes) {
  const std::uint64_t available = free_space(path);
  if (available < bytes) {
    fail("no space left on {}: needs {}, {} free, {} missing; free some space or choose another directory",
         printable_path(path), format_bytes(bytes), format_bytes(available), format_bytes(bytes - available));
  }
}

}  // namespace so
