// Files that all ranks of a run read or write at once. A file system that all of them share is taken for granted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "io/checksums.h"
#include "io/safetensors.h"
#include "ranks/communicator.h"

namespace so {

// Returns how long ranks may wait for one that reads or writes `bytes` bytes.
double seconds_for_files(std::uint64_t bytes);

// Rank 0 creates the files that all write.
FileWriters writers_of(const Communicator& ranks);

// Throws Error if the directory in which rank 0 has created files is not there for this rank.
void require_shared(const std::filesystem::path& directory);

// Throws Bug unless the ranks' numbers of bytes, as texts, add up to `bytes`.
void require_all_written(std::span<const std::string> written, std::uint64_t bytes);

// Returns the checksums of complete files: `files`, in `directory`, by name with their bytes. Each rank reads back a
// share of them. A collective; the ranks throw together.
std::map<std::string, FileChecksum> checksums_by_ranks(Communicator& ranks, const std::filesystem::path& directory,
                                                       const std::map<std::string, std::uint64_t>& files);

// Returns the rank that reads each of the files: all read about as many bytes.
std::map<std::string, int> readers_of(const std::map<std::string, std::uint64_t>& files, int ranks);

}  // namespace so
