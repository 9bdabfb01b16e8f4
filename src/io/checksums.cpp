#include "io/checksums.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/quantities.h"
#include "base/xxh3.h"
#include "io/json_events.h"

namespace so {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t format_version = 1;
constexpr const char* algorithm = "XXH3";
constexpr std::uint64_t max_list_bytes = 64'000'000;
constexpr std::size_t piece_bytes = std::size_t{1} << 20;  // stays in a core's cache between reading and hashing
constexpr int max_readers = 8;

bool plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

class ChecksumEvents : public JsonEvents {
 public:
  using JsonEvents::JsonEvents;
  Checksums result;

  void on_unsigned(std::uint64_t value) override {
    if (at_ == At::top && key_ == "format") {
      if (value != format_version) fail("{}: format {} is not known to this version of the program", source(), value);
    } else if (at_ == At::top && key_ == "step") {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) refuse("so large");
      result.step = static_cast<std::int64_t>(value);
    } else if (at_ == At::file && key_ == "bytes") {
      entry_.bytes = value;
    } else {
      refuse("an integer");
    }
  }
  void on_string(std::string& text) override {
    if (at_ == At::top && key_ == "algorithm") {
      if (text != algorithm) fail("{}: algorithm '{}' is not known, {} is", source(), printable(text), algorithm);
    } else if (at_ == At::file && key_ == "xxh3") {
      const char* end = text.data() + text.size();
      const auto [stop, error] = std::from_chars(text.data(), end, entry_.xxh3, 16);
      if (text.size() != 16 || error != std::errc() || stop != end) refuse("other than 16 hexadecimal digits");
    } else {
      refuse("a string");
    }
  }
  void on_start_object() override {
    if (at_ == At::document)
      at_ = At::top;
    else if (at_ == At::top && key_ == "files")
      at_ = At::files;
    else if (at_ == At::files)
      at_ = At::file, entry_ = {}, seen_in_file_.clear();
    else
      refuse("an object");
  }
  void on_end_object() override {
    if (at_ == At::file) {
      for (const char* key : {"bytes", "xxh3"}) require(seen_in_file_, key);
      result.files.emplace(name_, entry_);
      at_ = At::files;
    } else if (at_ == At::files) {
      at_ = At::top;
      key_ = "files";
      if (result.files.empty()) fail("{}: files lists no file", source());
    } else {
      for (const char* key : {"format", "algorithm", "files"}) require(seen_, key);
    }
  }
  void on_key(std::string& key) override {
    if (at_ == At::files) {
      if (!plain_name(key)) fail("{}: '{}' is not the name of a file of this directory", source(), printable(key));
      if (result.files.contains(key)) fail("{}: '{}' appears twice", source(), printable(key));
      name_ = key;
    } else {
      auto& seen = at_ == At::top ? seen_ : seen_in_file_;
      if (std::find(seen.begin(), seen.end(), key) != seen.end())
        fail("{}: {}'{}' appears twice", source(), of_file(), printable(key));
      seen.push_back(key);
    }
    key_ = key;
  }

 protected:
  std::string where() const override {
    return at_ == At::document ? "the list" : of_file() + "'" + printable(key_) + "'";
  }

 private:
  enum class At { document, top, files, file };
  std::string of_file() const { return at_ == At::file ? "of '" + printable(name_) + "', " : ""; }
  void require(const std::vector<std::string>& seen, const char* key) const {
    if (std::find(seen.begin(), seen.end(), key) == seen.end()) fail("{}: {}{} is missing", source(), of_file(), key);
  }

  At at_ = At::document;
  std::string key_, name_;
  FileChecksum entry_;
  std::vector<std::string> seen_, seen_in_file_;  // at most a handful: unknown ones are refused with their values
};

// Empty if the file is as it was.
std::string damage_of(const fs::path& file, const FileChecksum& expected,
                      const std::function<void(std::uint64_t)>& read) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (status.type() == fs::file_type::not_found) return "is missing";
  if (status.type() != fs::file_type::regular) return "is no regular file";
  try {
    const std::uint64_t bytes = fs::file_size(file, error);
    if (!error && bytes != expected.bytes)
      return fmt::format("has {} bytes, {} says {}", bytes, checksums_file, expected.bytes);
    const FileChecksum found = checksum_of_file(file, read);
    if (found != expected)
      return fmt::format("has the checksum {:016x}, {} says {:016x}", found.xxh3, checksums_file, expected.xxh3);
  } catch (const std::exception& failure) {
    return fmt::format("cannot be read: {}", failure.what());
  }
  return "";
}

}  // namespace

std::uint64_t Checksums::bytes() const {
  std::uint64_t all = 0;
  for (const auto& [name, file] : files) all += file.bytes;
  return all;
}

Checksums parse_checksums(std::string_view json, std::string_view source) {
  ChecksumEvents events(source);
  parse_json_events(json, events);
  return std::move(events.result);
}

std::string to_json(const Checksums& checksums) {
  nlohmann::ordered_json j{{"format", format_version}, {"algorithm", algorithm}};
  if (checksums.step) j["step"] = *checksums.step;
  j["files"] = nlohmann::ordered_json::object();
  for (const auto& [name, file] : checksums.files)
    j["files"][name] = {{"bytes", file.bytes}, {"xxh3", fmt::format("{:016x}", file.xxh3)}};
  return j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::optional<Checksums> read_checksums(const fs::path& directory) {
  const fs::path file = directory / checksums_file;
  std::error_code error;
  if (fs::status(file, error).type() == fs::file_type::not_found) return std::nullopt;
  return parse_checksums(read_text_file(file, max_list_bytes), printable_path(file));
}

void write_checksums(const fs::path& directory, Checksums known) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name == checksums_file || known.files.contains(name) || !entry->is_regular_file(error)) continue;
    known.files.emplace(name, checksum_of_file(entry->path()));
  }
  if (error) fail_io("list", directory, error.value());
  write_text_file_atomically(directory / checksums_file, to_json(known));
}

FileChecksum checksum_of_file(const fs::path& path, const std::function<void(std::uint64_t)>& read) {
  const File file = File::open(path);
  file.expect_sequential();
  const std::uint64_t size = file.size();
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min<std::uint64_t>(size, piece_bytes)));
  Xxh3Stream hash;
  for (std::uint64_t done = 0; done < size;) {
    const auto piece =
        std::span(buffer).first(static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), size - done)));
    file.pread_exact(piece, done);
    hash.add(piece);
    done += piece.size();
    if (read) read(piece.size());
  }
  return {size, hash.value()};
}

std::vector<FileDamage> find_damage(const fs::path& directory, const Checksums& checksums,
                                    const std::function<void(std::uint64_t)>& progress) {
  struct Job {
    const std::string* name;
    FileChecksum expected;
    std::string damage;
  };
  std::vector<Job> jobs;
  for (const auto& [name, expected] : checksums.files) jobs.push_back({&name, expected, ""});
  // The large ones first, so that none is left to one reader at the end.
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const Job& a, const Job& b) { return a.expected.bytes > b.expected.bytes; });

  std::atomic<std::size_t> next{0};
  std::atomic<std::uint64_t> bytes{0};
  std::mutex mutex;
  std::condition_variable ended;
  int running = 0;
  const auto work = [&] {
    for (std::size_t i; (i = next.fetch_add(1)) < jobs.size();)
      jobs[i].damage = damage_of(directory / *jobs[i].name, jobs[i].expected, [&](std::uint64_t n) { bytes += n; });
    const std::lock_guard lock(mutex);
    --running;
    ended.notify_all();
  };
  std::vector<std::jthread> readers;
  const int wanted = std::min({static_cast<int>(std::max(1U, std::thread::hardware_concurrency())), max_readers,
                               static_cast<int>(jobs.size())});
  running = wanted;
  for (int i = 0; i < wanted; ++i) {
    try {
      readers.emplace_back(work);
    } catch (const std::system_error&) {  // no more threads may be had: this one does it
      work();
    }
  }
  {
    std::unique_lock lock(mutex);
    while (running > 0) {
      ended.wait_for(lock, std::chrono::milliseconds(200));
      if (progress) progress(bytes);
    }
  }
  readers.clear();
  if (progress) progress(bytes);  // small files may all have been read before the first wait

  std::vector<FileDamage> damage;
  for (Job& job : jobs)
    if (!job.damage.empty()) damage.push_back({*job.name, std::move(job.damage)});
  std::sort(damage.begin(), damage.end(), [](const FileDamage& a, const FileDamage& b) { return a.file < b.file; });
  return damage;
}

}  // namespace so
