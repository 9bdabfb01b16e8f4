// The kernel's files about a machine (/proc, /sys), below one root, so that a machine that never was can be a folder of
// a test. Reading never throws: a file that is absent, that may not be read, or that is no regular file has no text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace so {

class MachineFiles {
 public:
  explicit MachineFiles(std::filesystem::path root = "/");
  virtual ~MachineFiles() = default;

  const std::filesystem::path& root() const { return root_; }
  // The place below the root of a path as the kernel names it, "/proc/meminfo".
  std::filesystem::path at(std::string_view path) const;

  bool exists(std::string_view path) const;
  // The first MiB of a file, without white space at its end; such files have no size that could be asked for.
  std::optional<std::string> text(std::string_view path) const;
  std::optional<std::uint64_t> number(std::string_view path) const;  // of a file that is one whole number
  std::vector<std::string> list(std::string_view directory) const;   // names, sorted; none if it cannot be read

  // Changes, each in one call of the kernel, since that is where resctrl checks them. They throw Error with the path
  // and the kernel's reason. Virtual, so that a test's tree can refuse as a kernel does.
  virtual bool is_root() const;  // whether this process may make them
  virtual void write(std::string_view path, std::string_view text);
  virtual void make_directory(std::string_view path);
  virtual void remove_directory(std::string_view path);
  void remove_file(std::string_view path);

 private:
  std::filesystem::path root_;
};

}  // namespace so
