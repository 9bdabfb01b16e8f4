#include "plan/machine/rate_cache.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <array>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json_tree.h"
#include "base/log.h"
#include "io/cache_directory.h"
#include "io/contained_files.h"

namespace so {
namespace {

using nlohmann::ordered_json;

constexpr std::uint64_t largest_file = 1 << 20;

// "model name" where the kernel gives it (x86), else the architecture.
std::string cpu_name() {
  const std::string text = [] {
    try {
      return read_text_file("/proc/cpuinfo", std::uint64_t{64} << 20);
    } catch (const Error&) {
      return std::string();
    }
  }();
  if (const auto at = text.find("model name"); at != text.npos) {
    const auto begin = text.find(": ", at), end = text.find('\n', at);
    if (begin < end && end != text.npos) return text.substr(begin + 2, end - begin - 2);
  }
  utsname names{};
  return ::uname(&names) == 0 ? names.machine : "unknown";
}

ordered_json to_json(const RateKey& key) {
  ordered_json json{{"gpu", key.gpu},
                    {"cpu", key.cpu},
                    {"threads", key.threads},
                    {"program", key.program},
                    {"compute", key.activations},
                    {"moments", key.moments}};
  if (key.ranks > 1) json["ranks"] = key.ranks;
  return json;
}

}  // namespace

RateKey rate_key(Runtime& runtime, const NumberFormats& formats, int ranks) {
  return {runtime.device().name(),
          cpu_name(),
          runtime.host_pool().size(),
          SO_VERSION,
          std::string(name_of(formats.activations)),
          std::string(name_of(formats.moments)),
          ranks};
}

std::optional<RateCache> RateCache::of_user() {
  try {
    return RateCache(cache_directories({}, {}).front());
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::filesystem::path RateCache::path_of(const RateKey& key) const {
  return directory_ / fmt::format("rates-{:016x}.json",
                                  hash_text(to_json(key).dump(-1, ' ', true, ordered_json::error_handler_t::replace)));
}

std::optional<RateCache::Found> RateCache::find(const RateKey& key, std::time_t now) const {
  const std::filesystem::path path = path_of(key);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  const auto unusable = [&](const std::string& why) {
    log_info("{}: {}; measuring the machine anew", printable_path(path), why);
    return std::nullopt;
  };
  try {
    const auto file = json_tree(text_of(open_own_file(path), largest_file));
    if (!file.is_object() || !file.contains("key") || !file.contains("hardware") || !file.contains("measured_at") ||
        !file["measured_at"].is_number_integer())
      return unusable("not a file of measured rates");
    if (file["key"] != nlohmann::json(to_json(key))) return unusable("of another machine or program");
    const auto measured_at = file["measured_at"].get<std::int64_t>();
    constexpr std::int64_t day = 24 * 60 * 60;
    // Clocks of machines that share a directory may differ a little.
    if (measured_at > now + day) return unusable("measured in the future");
    if (measured_at < now - days_valid * day)
      return unusable(fmt::format("measured on {}, more than {} days ago", utc_date(measured_at), days_valid));
    return Found{parse_hardware(file["hardware"].dump(), path.string()).rates, utc_date(measured_at)};
  } catch (const Error& error) {
    return unusable(error.what());
  }
}

void RateCache::store(const RateKey& key, const HardwareProfile& profile, std::time_t now) const {
  const ordered_json file{{"key", to_json(key)},
                          {"measured_at", static_cast<std::int64_t>(now)},
                          {"hardware", ordered_json::parse(so::to_json(profile))}};
  write(key, file.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

bool RateCache::drop(const RateKey& key) const {
  std::error_code ignored;
  return std::filesystem::remove(path_of(key), ignored);
}

void RateCache::write(const RateKey& key, const std::string& text) const {
  std::error_code ignored;
  try {
    const std::filesystem::path path = writable_cache_directory({directory_}) / path_of(key).filename();
    write_text_file_atomically(path, text);
    // Whatever the umask says, or find() would not trust it.
    std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write,
                                 ignored);
  } catch (const Error& error) {
    log_warning("what was measured of the machine is not kept: {}", error.what());
  }
}

std::string utc_date(std::time_t time) {
  std::array<char, 16> date{};
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  std::strftime(date.data(), date.size(), "%Y-%m-%d", &parts);
  return date.data();
}

HardwareProfile profile_of(const PlanningMachine& machine, const MachineRates& rates, std::time_t now) {
  std::vector<std::string> measured{"device_memory_bytes", "host_memory_bytes", "host_threads"};
  for (const auto& [key, member] : rate_names()) measured.emplace_back(key);
  return {.name = machine.name,
          .source = fmt::format("measured by superoffload {} on {}", SO_VERSION, utc_date(now)),
          .device_memory = machine.device_memory.value_or(machine.host.available),
          .host_memory = machine.host.available,
          .one_memory = machine.backend->shares_memory(),
          .host_threads = machine.pool->size(),
          .rates = rates,
          .measured = std::move(measured)};
}

void use_cached_rates(PlanningMachine& machine, Runtime& runtime, const NumberFormats& formats, RateUse use) {
  if (!machine.backend->own_processors) return;
  const std::optional<RateCache> cache = RateCache::of_user();
  if (!cache) return;
  const RateKey key = rate_key(runtime, formats);
  if (!use.fresh)
    if (const auto found = cache->find(key, std::time(nullptr))) {
      machine.rates = [rates = found->rates] { return rates; };
      adamw_use_tuning(found->rates.adamw);
      machine.rates_origin = fmt::format("measured on {} (--profile fresh measures anew)", found->date);
      return;
    }
  if (!use.keep) return;
  machine.rates = [measure = machine.rates, machine, cache = *cache, key] {
    const MachineRates rates = measure();
    const std::time_t now = std::time(nullptr);
    cache.store(key, profile_of(machine, rates, now), now);
    return rates;
  };
}

}  // namespace so
