#include "io/own_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/hash.h"
#include "base/json_tree.h"

namespace so {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t max_record_bytes = 64 << 20;
constexpr const char* format_key = "superoffload_files";
constexpr int record_version = 1;

std::mutex turn;  // of this process's threads; other processes are kept away by the run's lock

// Plain names with "/" between them.
bool stays_inside(std::string_view name) {
  for (int parts = 1; parts <= 4; ++parts) {
    const auto slash = name.find('/');
    const std::string_view part = name.substr(0, slash);
    if (part.empty() || part == "." || part == ".." || part.find('\0') != part.npos) return false;
    if (slash == name.npos) return true;
    name.remove_prefix(slash + 1);
  }
  return false;
}

std::string parent_of(const std::string& name) {
  const auto slash = name.rfind('/');
  return slash == name.npos ? std::string() : name.substr(0, slash);
}
std::string last_of(const std::string& name) { return name.substr(name.rfind('/') + 1); }

std::string checksum_of(const json& files) {
  return fmt::format("{:016x}", hash_text(files.dump(-1, ' ', false, json::error_handler_t::replace)));
}

[[noreturn]] void fail_damaged(const fs::path& file, std::string_view what) {
  fail(
      "{} {}: what this program wrote in that directory is not known; choose another directory, or remove what you no "
      "longer need by hand, this file with it",
      printable_path(file), what);
}

// An open directory. Those below `top` are opened part by part, so that no link is followed; closed if there is none.
class OpenDirectory {
 public:
  OpenDirectory(const fs::path& top, const std::string& below)
      : descriptor_(::openat(AT_FDCWD, top.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (descriptor_ < 0) fail_io("open directory", top, errno);
    for (const fs::path& part : fs::path(below)) {
      const int next = ::openat(descriptor_, part.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      ::close(std::exchange(descriptor_, next));
      if (next < 0) return;  // gone, or a link, or no directory: none of ours
    }
  }
  ~OpenDirectory() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  OpenDirectory(const OpenDirectory&) = delete;
  OpenDirectory& operator=(const OpenDirectory&) = delete;
  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

// Whether a regular file of that name was there and went.
bool remove_file(int directory, const std::string& name, const fs::path& shown) {
  struct stat status {};
  if (::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return false;
    fail_io("look at", shown, errno);
  }
  if (!S_ISREG(status.st_mode)) return false;
  if (::unlinkat(directory, name.c_str(), 0) != 0) fail_io("remove", shown, errno);
  return true;
}

}  // namespace

std::optional<FileNames> OwnFiles::read_unlocked() const {
  const fs::path file = directory_ / own_files_record;
  struct stat status {};
  if (::lstat(file.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    fail_io("look at", file, errno);
  }
  if (!S_ISREG(status.st_mode)) fail_damaged(file, "is not a regular file");
  const std::string text = read_text_file(file, max_record_bytes);
  const json record = json_tree(text);
  const auto key = [&](const char* name) {
    return record.is_object() && record.contains(name) ? record[name] : json();
  };
  const json files = key("files");
  if (key(format_key) != json(record_version) || !files.is_array() || key("checksum") != json(checksum_of(files)))
    fail_damaged(file, "is damaged");
  FileNames names;
  for (const json& name : files) {
    if (!name.is_string()) fail_damaged(file, "is damaged");
    if (!stays_inside(name.get<std::string>()))
      fail_damaged(file, fmt::format("names '{}', outside the directory", printable(name.get<std::string>())));
    names.insert(name.get<std::string>());
  }
  return names;
}

void OwnFiles::write_unlocked(const FileNames& names) const {
  for (const std::string& name : names) SO_CHECK(stays_inside(name), "{} for the record of files", name);
  // A name that is not UTF-8 is recorded with U+FFFD: it is then nobody's, and stays.
  const json files = json_tree(json(names).dump(-1, ' ', false, json::error_handler_t::replace));
  const nlohmann::ordered_json record{{format_key, record_version}, {"files", files}, {"checksum", checksum_of(files)}};
  write_text_file_atomically(directory_ / own_files_record, record.dump(1) + "\n");
}

std::optional<FileNames> OwnFiles::read() const {
  const std::lock_guard lock(turn);
  return read_unlocked();
}

void OwnFiles::add(const FileNames& names) const {
  const std::lock_guard lock(turn);
  const std::optional<FileNames> before = read_unlocked();
  FileNames all = before.value_or(FileNames());
  all.insert(names.begin(), names.end());
  if (!before || all != *before) write_unlocked(all);
}

std::size_t OwnFiles::remove(const FileNames& names) const {
  const std::lock_guard lock(turn);
  const std::optional<FileNames> recorded = read_unlocked();
  std::size_t gone = 0;
  std::map<std::string, std::vector<std::string>, std::greater<>> inside;  // by directory, the deeper ones first
  for (const std::string& name : names) {
    SO_CHECK(stays_inside(name), "{} to be removed from {}", name, directory_.string());
    inside[parent_of(name)].push_back(last_of(name));
    for (std::string directory = parent_of(name); !directory.empty(); directory = parent_of(directory))
      inside[directory];
  }
  for (const auto& [directory, files] : inside) {
    const OpenDirectory opened(directory_, directory);
    if (!opened.is_open()) continue;
    for (const std::string& file : files)
      gone += remove_file(opened.get(), file, directory_ / directory / file) ? 1 : 0;
    if (directory.empty()) continue;
    const OpenDirectory above(directory_, parent_of(directory));
    if (above.is_open() && ::unlinkat(above.get(), last_of(directory).c_str(), AT_REMOVEDIR) != 0 &&
        errno != ENOTEMPTY && errno != EEXIST)
      fail_io("remove", directory_ / directory, errno);
  }
  if (recorded) {
    FileNames left;
    std::set_difference(recorded->begin(), recorded->end(), names.begin(), names.end(),
                        std::inserter(left, left.end()));
    if (left != *recorded) write_unlocked(left);
  }
  fsync_directory(directory_);
  return gone;
}

FileNames files_in(const fs::path& directory, const std::string& prefix, int levels) {
  FileNames names;
  for (const fs::path& entry : entries_of(directory)) {
    const std::string name = prefix + entry.filename().string();
    if (is_link_path(entry) || !is_directory_path(entry))
      names.insert(name);
    else if (levels > 0)
      names.merge(files_in(entry, name + "/", levels - 1));
  }
  return names;
}

bool is_plain_file(const fs::path& directory, const std::string& name) {
  fs::path path = directory;
  for (const fs::path& part : fs::path(name)) {
    path /= part;
    if (is_link_path(path)) return false;
  }
  return is_regular_path(path);
}

}  // namespace so
