// Questions about the file system that answer or fail in our words: absence is an answer, everything else that stands
// in the way (a directory without permission, a loop of links, a name that is too long) is an Error that names the
// path. std::filesystem's own functions throw exceptions whose wording is not for users.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace so {

class File;

bool path_exists(const std::filesystem::path& path);        // links are followed: false for one that leads nowhere
bool is_directory_path(const std::filesystem::path& path);  // links are followed
bool is_regular_path(const std::filesystem::path& path);    // links are followed
bool is_link_path(const std::filesystem::path& path);

// Lists the entries of the directory, sorted by name.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& directory);

// With parents; existing ones are fine. Those that are made stay after a power failure, as far as their parents can be
// opened.
void make_directories(const std::filesystem::path& path);
void remove_path(const std::filesystem::path& path);  // a file, a link or an empty directory; absence is fine
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

// Copies a regular file, replacing what is there; one larger than `max_bytes` is an Error, so that no device and no
// file that grows can fill the disk.
void copy_regular_file(const std::filesystem::path& from, const std::filesystem::path& to, std::uint64_t max_bytes);
void copy_regular_file(const File& source, const std::filesystem::path& to, std::uint64_t max_bytes);

// Throws Error if the file is what a clone without Git LFS has in its place: a pointer of three lines.
void refuse_lfs_pointer(const std::filesystem::path& path);

}  // namespace so
