// The kernel's resctrl file system, which divides caches and memory bandwidth between groups of CPUs: Intel RDT, AMD's
// extensions and Arm MPAM (Documentation/filesystems/resctrl.rst).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/machine_files.h"
#include "ranks/binding.h"

namespace so {

inline constexpr std::string_view resctrl_root = "/sys/fs/resctrl";

// "L3:0=fff;1=fff": what a group has of a resource, by domain (a cache, or what memory hangs on). Values stay text,
// since those of a cache are hexadecimal masks and those of bandwidth decimal numbers.
struct SchemataLine {
  struct Share {
    int domain = 0;
    std::string value;
  };
  std::string resource;
  std::vector<Share> shares;
};
// The lines that have that form; the others are left out.
std::vector<SchemataLine> parse_schemata(std::string_view text);
std::string schemata_text(const SchemataLine& line);  // without a line end

struct CacheResource {
  std::string name;        // "L3"; "L3CODE" and "L3DATA" where code and data are divided apart
  std::uint64_t mask = 0;  // all ways
  unsigned least_ways = 1;
  std::vector<int> domains = {};
};

struct BandwidthResource {
  std::string name;                             // "MB"
  unsigned granularity = 1, least = 0;          // of percentages
  bool percent = true;                          // else the unit is another, and no share can be set by percentage
  std::vector<SchemataLine::Share> whole = {};  // of the group that all CPUs are in at first
};

struct ResctrlGroup {
  std::string name;
  Cpus cpus;
};

struct Resctrl {
  bool supported = false;  // by the kernel, on this machine
  bool mounted = false;
  std::vector<CacheResource> caches = {};          // of the third level
  std::vector<BandwidthResource> bandwidths = {};  // of memory
  std::vector<ResctrlGroup> groups = {};           // but for the one that all CPUs are in at first
  std::optional<std::uint64_t> most_groups = {};   // with that one

  std::string description() const;  // "L3 of 12 ways, MB in steps of 10%"
};

Resctrl read_resctrl(const MachineFiles& files);

}  // namespace so
