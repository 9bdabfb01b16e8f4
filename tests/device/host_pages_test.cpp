#include "device/host_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace so {
namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;

// The kernel's flags of the mapping that `address` lies in.
std::string flags_of(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) inside = begin <= wanted && wanted < end;
    if (inside && line.starts_with("VmFlags:")) return line + " ";
  }
  return {};
}

TEST(HostPages, AreZeroAndHugeWhereLarge) {
  for (const std::size_t bytes : {4096 * std::size_t{3}, 8 * MiB - 1, 8 * MiB, 20 * MiB + 5}) {
    auto* data = static_cast<unsigned char*>(map_host_pages(bytes));
    ASSERT_NE(data, nullptr);
    EXPECT_TRUE(std::all_of(data, data + bytes, [](unsigned char c) { return c == 0; }));
    data[0] = data[bytes - 1] = 1;
    const std::string flags = flags_of(data);
    if (flags.find(" rd ") == std::string::npos) GTEST_SKIP() << "this kernel does not say: " << flags;
    // "hg": huge pages advised. A kernel without them refuses the advice.
    const bool supported = std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").good();
    EXPECT_EQ(flags.find(" hg ") != std::string::npos, supported && bytes >= 8 * MiB) << bytes << flags;
    unmap_host_pages(data, bytes);
  }
}

TEST(HostPages, NoRoomIsNull) { EXPECT_EQ(map_host_pages(std::size_t{1} << 60), nullptr); }

// Sets the soft limit on locked memory for its own lifetime; a process may always lower it and raise it again.
class LockLimit {
 public:
  explicit LockLimit(rlim_t bytes) {
    getrlimit(RLIMIT_MEMLOCK, &before_);
    rlimit limit = before_;
    limit.rlim_cur = std::min(bytes, limit.rlim_max);
    setrlimit(RLIMIT_MEMLOCK, &limit);
  }
  ~LockLimit() { setrlimit(RLIMIT_MEMLOCK, &before_); }

 private:
  rlimit before_{};
};

TEST(HostPages, TheAdviceAboutTheLockLimitComesWhereItIsTooLow) {
  const LockLimit limit(64 << 10);
  EXPECT_EQ(lock_limit_advice(64 << 10), "");
  EXPECT_EQ(lock_limit_advice((64 << 10) + 1),
            "this process may lock only 65.5 kB of memory and holds 0 bytes: raise the limit with 'ulimit -l "
            "unlimited', or with memlock in /etc/security/limits.conf");
  // Memory that is locked already counts.
  void* page = map_host_pages(16 << 10);
  if (syscall(SYS_mlock, page, 16 << 10) == 0) {  // sanitizers make mlock() do nothing
    EXPECT_EQ(lock_limit_advice(48 << 10), "");
    EXPECT_NE(lock_limit_advice((48 << 10) + 1).find("holds 16.4 kB"), std::string::npos);
  }
  unmap_host_pages(page, 16 << 10);
}

}  // namespace
}  // namespace so
