#include "doctor/machine_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/proc_text.h"

namespace so {
namespace fs = std::filesystem;

MachineFiles::MachineFiles(fs::path root) : root_(std::move(root)) {}

fs::path MachineFiles::at(std::string_view path) const { return root_ / fs::path(path).relative_path(); }

bool MachineFiles::exists(std::string_view path) const {
  std::error_code error;
  return fs::exists(at(path), error);
}

std::optional<std::string> MachineFiles::text(std::string_view path) const {
  if (!exists(path)) return std::nullopt;
  std::string text;
  try {
    const File file = File::open(at(path));
    constexpr std::size_t most = std::size_t{1} << 20, step = 4096;
    while (text.size() < most) {
      const std::size_t had = text.size();
      text.resize(had + step);
      const ssize_t n = ::pread(file.descriptor(), text.data() + had, step, static_cast<off_t>(had));
      text.resize(had + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return std::nullopt;  // as some of sysfs's files do where the hardware knows no answer
      if (n == 0) break;
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  text.resize(trimmed(text).size());
  return text;
}

std::optional<std::uint64_t> MachineFiles::number(std::string_view path) const {
  const auto found = text(path);
  return found ? parse_whole(*found) : std::nullopt;
}

std::vector<std::string> MachineFiles::list(std::string_view directory) const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(at(directory), error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool MachineFiles::is_root() const { return ::geteuid() == 0; }

void MachineFiles::write(std::string_view path, std::string_view text) {
  const File file = File::create(at(path));
  ssize_t n = 0;
  do {
    n = ::write(file.descriptor(), text.data(), text.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0) fail_io("write", at(path), errno);
  if (static_cast<std::size_t>(n) != text.size()) fail("cannot write {}: the kernel took a part", at(path).string());
}

void MachineFiles::make_directory(std::string_view path) {
  if (::mkdir(at(path).c_str(), 0755) != 0) fail_io("create", at(path), errno);
}

void MachineFiles::remove_directory(std::string_view path) {
  if (::rmdir(at(path).c_str()) != 0) fail_io("remove", at(path), errno);
}

void MachineFiles::remove_file(std::string_view path) { remove_path(at(path)); }

}  // namespace so
