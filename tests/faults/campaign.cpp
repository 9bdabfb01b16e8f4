// The fault campaign: thousands of generated bad inputs and faults, and an oracle for each.
//
//   fault_campaign [--quick] [--only TEXT] [--count N] [--seed N] [--jobs N] [--keep DIR] [--list]
//
// --quick      a few of each kind, as the tests run it
// --only TEXT  cases whose "kind: name" contains it; of several, any
// --count N    so many of each file, option and kind of fault (default 100)
// --keep DIR   leaves the working directory of each case that failed there
// Exit code 0: the program behaved in all of them; 1: it did not, each with a line; 2: the campaign cannot run.
#include <fmt/core.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "faults/fault_case.h"
#include "support/files.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

struct Settings {
  int count = 100;
  bool quick = false;
  unsigned seed = 1, jobs = 2;
  bool list = false;
  std::vector<std::string> only;
  fs::path keep;
};

Settings parse(int argc, char** argv) {
  Settings s;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] {
      if (i + 1 >= argc) throw std::runtime_error(word + " needs a value");
      return std::string(argv[++i]);
    };
    if (word == "--quick")
      s.quick = true;
    else if (word == "--list")
      s.list = true;
    else if (word == "--only")
      s.only.push_back(value());
    else if (word == "--count")
      s.count = std::stoi(value());
    else if (word == "--seed")
      s.seed = static_cast<unsigned>(std::stoul(value()));
    else if (word == "--jobs")
      s.jobs = static_cast<unsigned>(std::stoul(value()));
    else if (word == "--keep")
      s.keep = value();
    else
      throw std::runtime_error("unknown word " + word + "; the head of tests/faults/campaign.cpp says what there is");
  }
  return s;
}

std::vector<FaultCase> chosen_cases(const Settings& s) {
  std::vector<FaultCase> all;
  struct Group {
    std::vector<FaultCase> (*make)(int count, unsigned seed);
    int quick;
  };
  constexpr Group groups[] = {{json_cases, 6},    {byte_cases, 4},   {node_cases, 10},
                              {record_cases, 12}, {option_cases, 1}, {run_cases, 3},
                              {limit_cases, 6},   {huge_cases, 1},   {small_disk_cases, 3}};
  for (const Group& group : groups)
    for (FaultCase& one : group.make(s.quick ? group.quick : s.count, s.seed))
      if (s.only.empty() || std::any_of(s.only.begin(), s.only.end(), [&](const std::string& text) {
            return (one.kind + " " + one.name).find(text) != std::string::npos;
          }))
        all.push_back(std::move(one));
  return all;
}

// Cases name devices as outputs. A program that fails to refuse them would, as root, replace the machine's own
// /dev/full by a file. Root therefore runs the campaign where nothing in /dev can be made, renamed or removed. False if
// the machine (a container) does not allow that.
bool protect_devices() {
  return ::geteuid() != 0 ||
         (::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
          ::mount("/dev", "/dev", nullptr, MS_BIND | MS_REC, nullptr) == 0 &&
          ::mount("none", "/dev", nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) == 0);
}

int campaign(const Settings& s) {
  std::vector<FaultCase> cases = chosen_cases(s);
  if (!protect_devices()) {
    const auto left_out =
        std::erase_if(cases, [](const FaultCase& one) { return one.name.find("/dev/") != std::string::npos; });
    fmt::print("{} cases that name a device are left out: root, and /dev cannot be protected\n", left_out);
  }
  if (s.list) {
    for (const FaultCase& one : cases) fmt::print("{} {}\n", one.kind, one.name);
    return 0;
  }
  if (cases.empty()) throw std::runtime_error("no case's name contains what --only says");
  TemporaryDirectory directory;
  const Originals originals(directory / "originals");

  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::map<std::string, std::pair<int, int>> by_kind;  // cases, failed
  int failed = 0;
  const auto start = std::chrono::steady_clock::now();
  const auto work_off = [&] {
    for (std::size_t i; (i = next++) < cases.size();) {
      const FaultCase& one = cases[i];
      const fs::path work = directory / std::to_string(i);
      std::string complaint;
      try {
        fs::copy(originals.path(), work, fs::copy_options::recursive);
        complaint = one.run(work);
      } catch (const std::exception& error) {
        complaint = std::string("the case could not be run: ") + error.what();
      }
      const std::lock_guard lock(mutex);
      ++by_kind[one.kind].first;
      if (!complaint.empty()) {
        ++by_kind[one.kind].second;
        ++failed;
        fmt::print("FAILED {} {}: {}\n", one.kind, one.name, complaint);
        std::fflush(stdout);
        if (!s.keep.empty()) {
          fs::create_directories(s.keep);
          fs::copy(work, s.keep / std::to_string(i), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
        }
      }
      std::error_code ignored;
      fs::remove_all(work, ignored);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < s.jobs; ++t) threads.emplace_back(work_off);
  for (std::thread& thread : threads) thread.join();

  for (const auto& [kind, counts] : by_kind)
    fmt::print("{:60} {:6} cases {:4} failed\n", kind, counts.first, counts.second);
  fmt::print("{} cases, {} failed, {:.0f} s\n", cases.size(), failed,
             std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace so::test

int main(int argc, char** argv) {
  try {
    return so::test::campaign(so::test::parse(argc, argv));
  } catch (const std::exception& error) {
    fmt::print(stderr, "fault_campaign: {}\n", error.what());
    return 2;
  }
}
