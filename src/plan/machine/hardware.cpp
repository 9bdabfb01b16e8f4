#include "plan/machine/hardware.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/json_text.h"
#include "io/presets.h"

namespace so {
namespace {

using nlohmann::ordered_json;

constexpr std::pair<const char*, double MachineRates::*> rates[]{
    {"gemm_flops", &MachineRates::gemm_flops},      {"device_memory", &MachineRates::device_memory},
    {"link_to_host", &MachineRates::link_to_host},  {"link_to_device", &MachineRates::link_to_device},
    {"host_adamw_bf16", &MachineRates::host_adamw}, {"host_adamw_fp32", &MachineRates::host_adamw_wide},
    {"host_memory", &MachineRates::host_memory},    {"kernel_seconds", &MachineRates::kernel_seconds},
};

using E = Efficiencies;
constexpr std::pair<const char*, double E::*> efficiencies[]{
    {"attention_forward", &E::attention_forward},
    {"attention_backward", &E::attention_backward},
    {"small_head_attention_forward", &E::small_head_attention_forward},
    {"small_head_attention_backward", &E::small_head_attention_backward},
    {"long_attention_forward", &E::long_attention_forward},
    {"long_attention_backward", &E::long_attention_backward},
    {"long_small_head_attention_backward", &E::long_small_head_attention_backward},
    {"any_order", &E::any_order},
    {"any_order_small_head", &E::any_order_small_head},
    {"fp8_products", &E::fp8_products},
    {"window_forward", &E::window_forward},
    {"window_backward", &E::window_backward},
    {"attention_block_queries", &E::attention_block_queries},
    {"processors", &E::processors},
    {"attention_tile_keys", &E::attention_tile_keys},
    {"expert_rows", &E::expert_rows},
    {"experts", &E::experts},
    {"unaligned_products", &E::unaligned_products},
    {"odd_products", &E::odd_products},
    {"forward_kernels", &E::forward_kernels},
    {"backward_kernels", &E::backward_kernels},
    {"expert_kernels", &E::expert_kernels},
    {"device_adamw", &E::device_adamw},
};

using S = SharedRates;
constexpr std::pair<const char*, double S::*> shared_rates[]{
    {"link_to_host", &S::link_to_host},  {"link_to_device", &S::link_to_device},   {"link_both", &S::link_both},
    {"host_adamw_bf16", &S::host_adamw}, {"host_adamw_fp32", &S::host_adamw_wide}, {"host_memory", &S::host_memory},
};

using I = Interconnect;
constexpr std::pair<const char*, double I::*> interconnect[]{
    {"peer", &I::peer},
    {"network", &I::network},
    {"collective_seconds", &I::collective_seconds},
    {"peer_seconds", &I::peer_seconds},
    {"network_seconds", &I::network_seconds},
};

class Reader {
 public:
  Reader(const ordered_json& object, std::string origin, std::string prefix = {})
      : object_(object), origin_(std::move(origin)), prefix_(std::move(prefix)) {
    if (!object.is_object()) fail("{}: {}expected a JSON object", origin_, prefix_);
  }
  const ordered_json& at(const char* key) const {
    const auto it = object_.find(key);
    if (it == object_.end()) fail("{}: {}{}: missing", origin_, prefix_, key);
    return *it;
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) fail("{}: {}{}: expected a string", origin_, prefix_, key);
    return at(key).get<std::string>();
  }
  bool boolean(const char* key) const {
    if (!at(key).is_boolean()) fail("{}: {}{}: expected true or false", origin_, prefix_, key);
    return at(key).get<bool>();
  }
  double positive(const char* key, double most) const {
    const ordered_json& value = at(key);
    if (!value.is_number() || !(value.get<double>() > 0) || value.get<double>() > most)
      fail("{}: {}{}: expected a positive number, at most {:g}", origin_, prefix_, key, most);
    return value.get<double>();
  }
  void only(const std::vector<std::string_view>& known) const {
    for (const auto& [key, value] : object_.items())
      if (std::find(known.begin(), known.end(), key) == known.end())
        fail("{}: {}{}: not a key of a hardware file", origin_, prefix_, printable(key));
  }

 private:
  const ordered_json& object_;
  std::string origin_, prefix_;
};

constexpr double most_bytes = 1e15, most_rate = 1e19;

ordered_json parse_text(std::string_view text, const std::string& origin) {
  try {
    const auto plain = with_plain_numbers(text);
    return ordered_json::parse(plain ? std::string_view(*plain) : text,
                               [&](int depth, ordered_json::parse_event_t, ordered_json&) {
                                 if (depth > 8) fail("{}: nested more than 8 deep", printable_path(origin));
                                 return true;
                               });
  } catch (const nlohmann::json::exception&) {
    fail("{}: not valid JSON", printable_path(origin));
  }
}

// All of a table's constants, and nothing else.
template <class Table, class Values>
void read_table(const Reader& object, const Table& table, Values& values) {
  std::vector<std::string_view> known;
  for (const auto& [key, member] : table) known.emplace_back(key);
  object.only(known);
  for (const auto& [key, member] : table) values.*member = object.positive(key, most_rate);
}

// The keys of the constants of a file, or of a host in it.
std::vector<std::string_view> constants_of(const ordered_json& file) {
  std::vector<std::string_view> constants{"device_memory_bytes", "host_memory_bytes", "host_threads"};
  for (const char* table : {"rates", "efficiencies", "between_gpus"})
    if (file.contains(table))
      for (const auto& [key, value] : file[table].items()) constants.emplace_back(key);
  return constants;
}

// The file, or a host in it, may say where its constants come from. That is for people to read, so only its form is
// checked.
void check_sources(const ordered_json& file, const std::string& origin, const std::string& prefix = {}) {
  if (!file.contains("sources")) return;
  const Reader sources(file["sources"], origin, prefix + "sources.");
  sources.only(constants_of(file));
  for (const auto& [key, value] : file["sources"].items()) sources.text(key.c_str());
}

// Of any table, also of one that the file lacks.
std::vector<std::string> read_measured(const ordered_json& file, const std::string& origin,
                                       const std::string& prefix = {}) {
  std::vector<std::string_view> known = constants_of(file);
  for (const auto& [key, member] : efficiencies) known.emplace_back(key);
  for (const auto& [key, member] : interconnect) known.emplace_back(key);
  if (!file["measured"].is_array()) fail("{}: {}measured: expected a list of names", origin, prefix);
  std::vector<std::string> measured;
  for (const ordered_json& name : file["measured"]) {
    if (!name.is_string() || std::find(known.begin(), known.end(), name.get<std::string>()) == known.end())
      fail("{}: {}measured: {}: not a constant of hardware files", origin, prefix, printable(name.dump()));
    measured.push_back(name.get<std::string>());
  }
  return measured;
}

std::vector<OtherRates> read_other_rates(const ordered_json& list, const std::string& origin) {
  if (!list.is_array()) fail("{}: other_rates: expected a list of JSON objects", origin);
  std::vector<std::string_view> known;
  for (const auto& [key, member] : rates) known.emplace_back(key);
  std::vector<OtherRates> all;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string prefix = fmt::format("other_rates[{}].", i);
    const Reader file(list[i], origin, prefix);
    file.only({"what", "source", "rates"});
    OtherRates other{file.text("what"), file.text("source"), {}};
    const Reader values(file.at("rates"), origin, prefix + "rates.");
    values.only(known);
    for (const auto& [key, value] : list[i]["rates"].items())
      other.rates.emplace_back(key, values.positive(key.c_str(), most_rate));
    if (other.rates.empty()) fail("{}: {}rates: names no rate", origin, prefix);
    all.push_back(std::move(other));
  }
  return all;
}

std::vector<SharedHost> read_hosts(const ordered_json& list, const std::string& origin) {
  constexpr double most_gpus = 1024;
  if (!list.is_array()) fail("{}: hosts: expected a list of JSON objects", origin);
  std::vector<SharedHost> hosts;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string prefix = fmt::format("hosts[{}].", i);
    const Reader file(list[i], origin, prefix);
    file.only({"gpus", "host_memory_bytes", "host_threads", "measured", "rates", "sources"});
    SharedHost host;
    const double gpus = file.positive("gpus", most_gpus);
    host.gpus = static_cast<int>(gpus);
    if (host.gpus != gpus || host.gpus <= (hosts.empty() ? 1 : hosts.back().gpus))
      fail("{}: {}gpus: expected a whole number above {}", origin, prefix, hosts.empty() ? 1 : hosts.back().gpus);
    host.host_memory = static_cast<std::size_t>(file.positive("host_memory_bytes", most_bytes));
    host.host_threads = static_cast<int>(std::ceil(file.positive("host_threads", 65536)));
    read_table(Reader(file.at("rates"), origin, prefix + "rates."), shared_rates, host.rates);
    check_sources(list[i], origin, prefix);
    if (list[i].contains("measured")) host.measured = read_measured(list[i], origin, prefix);
    hosts.push_back(std::move(host));
  }
  return hosts;
}

// Without a network where there is none.
Interconnect read_interconnect(const ordered_json& object, const std::string& origin) {
  const Reader file(object, origin, "between_gpus.");
  std::vector<std::string_view> known;
  for (const auto& [key, member] : interconnect) known.emplace_back(key);
  file.only(known);
  const bool network = object.contains("network") || object.contains("network_seconds");
  Interconnect values;
  for (const auto& [key, member] : interconnect)
    if (network || !std::string_view(key).starts_with("network")) values.*member = file.positive(key, most_rate);
  return values;
}

AdamWTuning read_tuning(const ordered_json& object, const std::string& origin) {
  const Reader file(object, origin, "adamw.");
  file.only({"tile_elements", "prefetch_elements"});
  const auto whole = [&](const char* key) {
    const ordered_json& value = file.at(key);
    return value.is_number_integer() ? value.get<std::int64_t>() : -1;
  };
  const AdamWTuning tuning{.tile = whole("tile_elements"), .prefetch = whole("prefetch_elements")};
  if (!tuning.usable())
    fail("{}: adamw: expected tile_elements, a multiple of {} from {} to {}, and prefetch_elements, from 0 to {}",
         origin, AdamWTuning::line, AdamWTuning::least_tile, AdamWTuning::most_tile, AdamWTuning::most_prefetch);
  return tuning;
}

std::string_view preset_text(std::string_view name) {
  for (const Preset& preset : hardware_presets())
    if (preset.name == name) return preset.json;
  throw Bug(fmt::format("no hardware preset {}", name));
}

}  // namespace

std::span<const std::pair<const char*, double MachineRates::*>> rate_names() { return rates; }
std::span<const std::pair<const char*, double Efficiencies::*>> efficiency_names() { return efficiencies; }
std::span<const std::pair<const char*, double SharedRates::*>> shared_rate_names() { return shared_rates; }
std::span<const std::pair<const char*, double Interconnect::*>> interconnect_names() { return interconnect; }

const Efficiencies& h200_efficiencies() {
  // Reads this object alone, because a profile has its efficiencies before its file is read.
  static const Efficiencies measured = [] {
    const std::string origin = "configs/hardware/h200.json";
    const ordered_json file = parse_text(preset_text("h200"), origin);
    Efficiencies values;
    read_table(Reader(file.at("efficiencies"), origin, "efficiencies."), efficiencies, values);
    return values;
  }();
  return measured;
}

HardwareProfile parse_hardware(std::string_view text, const std::string& origin) {
  const ordered_json json = parse_text(text, origin);
  const std::string file_name = printable_path(origin);
  const Reader file(json, file_name);
  file.only({"name", "source", "one_memory", "fp8", "device_memory_bytes", "host_memory_bytes", "host_threads",
             "measured", "rates", "adamw", "efficiencies", "fixed_memory", "other_rates", "hosts", "between_gpus",
             "sources"});
  HardwareProfile profile;
  profile.name = file.text("name");
  profile.source = file.text("source");
  profile.device_memory = static_cast<std::size_t>(file.positive("device_memory_bytes", most_bytes));
  profile.host_memory = static_cast<std::size_t>(file.positive("host_memory_bytes", most_bytes));
  if (json.contains("one_memory")) {
    if (!json["one_memory"].is_boolean()) fail("{}: one_memory: expected true or false", file_name);
    profile.one_memory = json["one_memory"].get<bool>();
  }
  if (profile.one_memory && profile.device_memory != profile.host_memory)
    fail(
        "{}: one_memory: GPU and CPU share it, so device_memory_bytes and host_memory_bytes must be the same: all of it",
        file_name);
  if (json.contains("fp8")) profile.fp8 = file.boolean("fp8");
  profile.host_threads = static_cast<int>(std::ceil(file.positive("host_threads", 4096)));
  read_table(Reader(file.at("rates"), file_name, "rates."), rates, profile.rates);
  if (json.contains("adamw")) profile.rates.adamw = read_tuning(json["adamw"], file_name);
  if (json.contains("efficiencies"))
    read_table(Reader(json["efficiencies"], file_name, "efficiencies."), efficiencies, profile.rates.efficiencies);
  if (json.contains("hosts")) profile.hosts = read_hosts(json["hosts"], file_name);
  if (json.contains("between_gpus")) profile.between_gpus = read_interconnect(json["between_gpus"], file_name);
  check_sources(json, file_name);
  if (json.contains("fixed_memory")) profile.fixed_memory = file.boolean("fixed_memory");
  if (json.contains("measured")) profile.measured = read_measured(json, file_name);
  if (json.contains("other_rates")) profile.other_rates = read_other_rates(json["other_rates"], file_name);
  return profile;
}

std::string to_json(const HardwareProfile& profile) {
  ordered_json by_name;
  for (const auto& [key, member] : rates) by_name[key] = profile.rates.*member;
  ordered_json json{{"name", profile.name}, {"source", profile.source}};
  if (profile.one_memory) json["one_memory"] = true;
  if (profile.fp8) json["fp8"] = true;
  json["device_memory_bytes"] = profile.device_memory;
  json["host_memory_bytes"] = profile.host_memory;
  json["host_threads"] = profile.host_threads;
  if (profile.measured) {
    // Of what is written here.
    std::vector<std::string> measured = *profile.measured;
    std::erase_if(measured, [&](const std::string& key) { return !json.contains(key) && !by_name.contains(key); });
    json["measured"] = measured;
  }
  json["rates"] = by_name;
  json["adamw"] = {{"tile_elements", profile.rates.adamw.tile}, {"prefetch_elements", profile.rates.adamw.prefetch}};
  return json.dump(2) + "\n";
}

std::string_view measured_status(const HardwareProfile& profile) {
  if (!profile.measured) return "unknown";
  if (profile.measured->empty()) return "planned";
  const bool all = std::all_of(std::begin(rates), std::end(rates), [&](const auto& rate) {
    return std::find(profile.measured->begin(), profile.measured->end(), rate.first) != profile.measured->end();
  });
  return all ? "measured" : "measured in part";
}

std::string measured_text(const HardwareProfile& profile) {
  const std::string_view status = measured_status(profile);
  if (status == "unknown") return "its file does not say what was measured";
  if (status == "planned") return "planned; nothing was measured on one";
  if (status == "measured") return "all rates measured";
  return fmt::format("only these of its figures were measured: {}", fmt::join(*profile.measured, ", "));
}

HardwareProfile with_rates(HardwareProfile profile, const OtherRates& other) {
  for (const auto& [name, value] : other.rates) {
    for (const auto& [key, member] : rates) {
      if (name != key) continue;
      for (SharedHost& host : profile.hosts)
        for (const auto& [shared, part] : shared_rates)
          if (name == shared) host.rates.*part *= value / profile.rates.*member;
      profile.rates.*member = value;
    }
  }
  return profile;
}

std::span<const KnownHardware> known_hardware() {
  static const std::vector<KnownHardware> known = [] {
    std::vector<KnownHardware> all;
    for (const Preset& preset : hardware_presets())
      all.push_back({preset.name, parse_hardware(preset.json, fmt::format("configs/hardware/{}.json", preset.name))});
    return all;
  }();
  return known;
}

HardwareProfile resolve_hardware(const std::string& name_or_path) {
  if (path_exists(name_or_path)) {
    constexpr std::uint64_t most = 1 << 20;
    return parse_hardware(read_text_file(name_or_path, most), name_or_path);
  }
  for (const KnownHardware& known : known_hardware())
    if (known.key == name_or_path) return known.profile;
  fail("--hardware {}: no such file, and no machine of that name is known; known are {}", printable_path(name_or_path),
       names_of(hardware_presets()));
}

}  // namespace so
