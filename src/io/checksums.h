// checksums.json: what the files of a directory were when they were written, so that damage and mixing are noticed.
//
//   {"format": 1, "algorithm": "XXH3", "step": 20, "files": {"config.json": {"bytes": 731, "xxh3": "0123456789a..."}}}
//
// XXH3 is that of 64 bits, as `xxhsum -H3` prints it. "step" stands in checkpoints only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace so {

inline constexpr const char* checksums_file = "checksums.json";

struct FileChecksum {
  std::uint64_t bytes = 0;
  std::uint64_t xxh3 = 0;
  bool operator==(const FileChecksum&) const = default;
};

struct Checksums {
  std::optional<std::int64_t> step;
  std::map<std::string, FileChecksum> files;  // by name; plain names, no directories
  bool operator==(const Checksums&) const = default;

  std::uint64_t bytes() const;  // of all files
};

// Untrusted text: any byte sequence gives a list with at least one file, or an Error that names `source`. It refuses
// unknown and repeated keys, names that are no plain file names, and checksums of other than 16 hexadecimal digits.
Checksums parse_checksums(std::string_view json, std::string_view source);
std::string to_json(const Checksums& checksums);

// The list of DIRECTORY/checksums.json; none if there is no such file.
std::optional<Checksums> read_checksums(const std::filesystem::path& directory);

// Writes DIRECTORY/checksums.json: `known`, and what else lies in the directory as it is read now. All files of that
// directory must be the caller's, and the large ones should be in `known`.
void write_checksums(const std::filesystem::path& directory, Checksums known);

// Reads a file whole. `read` is told of bytes as they are read.
FileChecksum checksum_of_file(const std::filesystem::path& file, const std::function<void(std::uint64_t)>& read = {});

struct FileDamage {
  std::string file;  // its name in the directory
  std::string what;  // "is missing", "has 10 B, checksums.json says 20 B"
};

// Reads the files of the list, several at once, and says which are not as it has them, in the order of their names.
// `progress` is told now and then and once at the end, by the calling thread, how many bytes have been read.
std::vector<FileDamage> find_damage(const std::filesystem::path& directory, const Checksums& checksums,
                                    const std::function<void(std::uint64_t)>& progress = {});

}  // namespace so
