#include "doctor/partition/resctrl.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/file.h"
#include "base/proc_text.h"

namespace so {
namespace {

std::string below(std::string_view path) { return fmt::format("{}/{}", resctrl_root, path); }

bool is_domain_value(std::string_view value) {
  return !value.empty() && value.size() <= 64 && std::all_of(value.begin(), value.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') || c == ',';
  });
}

std::optional<SchemataLine::Share> parse_share(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) return std::nullopt;
  const auto domain = parse_whole(text.substr(0, equals));
  const std::string_view value = text.substr(equals + 1);
  if (!domain || *domain > 0x7fffffff || !is_domain_value(value)) return std::nullopt;
  return SchemataLine::Share{static_cast<int>(*domain), std::string(value)};
}

bool is_mounted(const MachineFiles& files) {
  const auto mounts = files.text("/proc/self/mounts");
  for (const std::string_view line : lines_of(mounts ? std::string_view(*mounts) : std::string_view())) {
    const auto words = words_of(line);
    if (words.size() >= 3 && words[1] == resctrl_root && words[2] == "resctrl") return true;
  }
  return false;
}

void read_resource(const MachineFiles& files, const SchemataLine& line, Resctrl& found) {
  const std::string info = below("info/" + line.resource + "/");
  std::vector<int> domains;
  for (const SchemataLine::Share& share : line.shares) domains.push_back(share.domain);
  if (line.resource == "L3" || line.resource == "L3CODE" || line.resource == "L3DATA") {
    const auto mask = files.text(info + "cbm_mask");
    const auto bits = mask ? parse_hex(*mask) : std::nullopt;
    if (!bits || *bits == 0) return;
    const std::uint64_t least = files.number(info + "min_cbm_bits").value_or(1);
    found.caches.push_back(
        {line.resource, *bits, static_cast<unsigned>(std::clamp<std::uint64_t>(least, 1, 64)), domains});
  } else if (line.resource == "MB") {
    BandwidthResource bandwidth{line.resource};
    const std::uint64_t granularity = files.number(info + "bandwidth_gran").value_or(1);
    bandwidth.granularity = static_cast<unsigned>(std::clamp<std::uint64_t>(granularity, 1, 100));
    bandwidth.least =
        static_cast<unsigned>(std::min<std::uint64_t>(files.number(info + "min_bandwidth").value_or(0), 100));
    bandwidth.whole = line.shares;
    // AMD counts eighths of a GB/s, and so does Intel in MB/s under the mount option mba_MBps.
    bandwidth.percent = std::all_of(line.shares.begin(), line.shares.end(), [](const SchemataLine::Share& share) {
      const auto value = parse_whole(share.value);
      return value && *value <= 100;
    });
    found.bandwidths.push_back(std::move(bandwidth));
  } else {
    return;
  }
  if (const auto groups = files.number(info + "num_closids"))
    found.most_groups = std::min(found.most_groups.value_or(*groups), *groups);
}

}  // namespace

std::vector<SchemataLine> parse_schemata(std::string_view text) {
  std::vector<SchemataLine> lines;
  for (std::string_view line : lines_of(text)) {
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));  // names are aligned at their right
    line = trimmed(line);
    const std::size_t colon = line.find(':');
    if (colon == 0 || colon == std::string_view::npos) continue;
    SchemataLine parsed{std::string(line.substr(0, colon)), {}};
    if (parsed.resource.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != std::string::npos) continue;
    bool good = true;
    for (std::string_view rest = line.substr(colon + 1); good && !rest.empty();) {
      const std::size_t end = std::min(rest.find(';'), rest.size());
      const auto share = parse_share(rest.substr(0, end));
      good = share.has_value();
      if (share) parsed.shares.push_back(*share);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    if (good && !parsed.shares.empty()) lines.push_back(std::move(parsed));
  }
  return lines;
}

std::string schemata_text(const SchemataLine& line) {
  std::string text = line.resource;
  for (std::size_t i = 0; i < line.shares.size(); ++i)
    text += fmt::format("{}{}={}", i == 0 ? ":" : ";", line.shares[i].domain, line.shares[i].value);
  return text;
}

Resctrl read_resctrl(const MachineFiles& files) {
  Resctrl found;
  const auto systems = files.text("/proc/filesystems");
  for (const std::string_view line : lines_of(systems ? std::string_view(*systems) : std::string_view())) {
    const auto words = words_of(line);
    found.supported |= !words.empty() && words.back() == "resctrl";
  }
  found.mounted = is_mounted(files);
  found.supported |= found.mounted;
  if (!found.mounted) return found;
  if (const auto schemata = files.text(below("schemata")))
    for (const SchemataLine& line : parse_schemata(*schemata)) read_resource(files, line, found);
  for (const std::string& name : files.list(resctrl_root)) {
    if (name == "info" || name == "mon_groups" || name == "mon_data" || !files.exists(below(name + "/schemata")))
      continue;
    const auto cpus = files.text(below(name + "/cpus_list"));
    found.groups.push_back({name, cpus ? parse_cpu_list(*cpus).value_or(Cpus{}) : Cpus{}});
  }
  return found;
}

std::string Resctrl::description() const {
  std::string text;
  for (const CacheResource& cache : caches)
    text += fmt::format("{}{} of {} ways", text.empty() ? "" : ", ", cache.name, std::popcount(cache.mask));
  for (const BandwidthResource& bandwidth : bandwidths)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", bandwidth.name,
                        bandwidth.percent ? fmt::format("in steps of {}%", bandwidth.granularity)
                                          : std::string("in another unit than percent"));
  return text.empty() ? "neither L3 nor MB can be divided" : text;
}

}  // namespace so
