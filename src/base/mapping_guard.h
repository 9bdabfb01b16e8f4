// Another process may shorten a file while this one reads it through a mapping: the kernel then raises SIGBUS,
// which would end the program without a word. Here it ends with a sentence that names the file, and exit code 2.
#pragma once

#include <cstddef>
#include <filesystem>

namespace so {

// From now on a page of [begin, begin + bytes) that the file no longer has is reported as `path`'s. The first call
// installs the handler of SIGBUS; a fault elsewhere goes on to whoever handled it before. Called by MappedFile. Beyond
// 4,096 mappings at once further ones are not guarded.
void guard_mapping(const void* begin, std::size_t bytes, const std::filesystem::path& path);
// Before the mapping goes.
void release_mapping(const void* begin);

}  // namespace so
