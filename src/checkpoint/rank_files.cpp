#include "checkpoint/rank_files.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "ranks/together.h"

namespace so {

double seconds_for_files(std::uint64_t bytes) {
  // Slower than any file system that holds such files; opening, flushing and renaming come on top.
  constexpr double bytes_a_second = 16 << 20, on_top = 120;
  return on_top + static_cast<double>(bytes) / bytes_a_second;
}

FileWriters writers_of(const Communicator& ranks) {
  if (ranks.size() == 1) return FileWriters::one;
  return ranks.rank() == 0 ? FileWriters::first_of_several : FileWriters::other_of_several;
}

void require_shared(const std::filesystem::path& directory) {
  if (!is_directory_path(directory))
    fail("{} is not there, where rank 0 has made it: all ranks need the output directory on a file system they share",
         printable_path(directory));
}

void require_all_written(std::span<const std::string> written, std::uint64_t bytes) {
  std::uint64_t sum = 0;
  for (const std::string& text : written) {
    std::uint64_t own = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), own);
    SO_CHECK(error == std::errc() && end == text.data() + text.size(), "a rank wrote '{}' bytes", text);
    sum += own;
  }
  SO_CHECK(sum == bytes, "{} ranks wrote {} of {} bytes", written.size(), sum, bytes);
}

std::map<std::string, int> readers_of(const std::map<std::string, std::uint64_t>& files, int ranks) {
  std::vector<std::pair<std::string, std::uint64_t>> by_size(files.begin(), files.end());
  std::stable_sort(by_size.begin(), by_size.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::uint64_t> bytes(static_cast<std::size_t>(ranks));
  std::map<std::string, int> readers;
  for (const auto& [name, size] : by_size) {
    const auto least = std::min_element(bytes.begin(), bytes.end());
    readers[name] = static_cast<int>(least - bytes.begin());
    *least += size;
  }
  return readers;
}

std::map<std::string, FileChecksum> checksums_by_ranks(Communicator& ranks, const std::filesystem::path& directory,
                                                       const std::map<std::string, std::uint64_t>& files) {
  const auto own_share = [&] {
    Checksums own;
    for (const auto& [name, rank] : readers_of(files, ranks.size()))
      if (rank == ranks.rank()) own.files.emplace(name, checksum_of_file(directory / name));
    return own.files.empty() ? std::string() : to_json(own);
  };
  std::map<std::string, FileChecksum> all;
  for (const std::string& share : gather_texts(ranks, own_share))
    if (!share.empty()) all.merge(parse_checksums(share, "the checksums of a rank").files);
  SO_CHECK(all.size() == files.size(), "{} checksums of {} files", all.size(), files.size());
  for (const auto& [name, bytes] : files)
    if (all.at(name).bytes != bytes)
      fail_on_all(fmt::format("{} has {} bytes where {} were written", printable_path(directory / name),
                              all.at(name).bytes, bytes));
  return all;
}

}  // namespace so
