#include "plan/machine/hardware.h"

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

namespace so {
namespace {

using nlohmann::ordered_json;

constexpr std::pair<const char*, double MachineRates::*> rates[]{
    {"gemm_flops", &MachineRates::gemm_flops},      {"device_memory", &MachineRates::device_memory},
    {"link_to_host", &MachineRates::link_to_host},  {"link_to_device", &MachineRates::link_to_device},
    {"host_adamw_bf16", &MachineRates::host_adamw}, {"host_adamw_fp32", &MachineRates::host_adamw_wide},
    {"host_memory", &MachineRates::host_memory},    {"kernel_seconds", &MachineRates::kernel_seconds},
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
  double positive(const char* key, double most) const {
    const ordered_json& value = at(key);
    if (!value.is_number() || !(value.get<double>() > 0) || value.get<double>() > most)
      fail("{}: {}{}: expected a positive number, at most {:g}", origin_, prefix_, key, most);
    return value.get<double>();
  }
  template <class Known>
  void only(const Known& known) const {
    for (const auto& [key, value] : object_.items())
      if (!known(key)) fail("{}: {}{}: not a key of a hardware file", origin_, prefix_, printable(key));
  }

 private:
  const ordered_json& object_;
  std::string origin_, prefix_;
};

constexpr double most_bytes = 1e15, most_rate = 1e19;

constexpr double GB = 1e9, TFLOP = 1e12;

// Of data sheets' peaks, the shares that the H200 reached on the reference machine: 670 of 990 dense bf16 TFLOP/s in a
// large product of random data, 4.15 of 4.8 TB/s of device memory, 55 of 63 GB/s of PCIe 5.0 x16.
constexpr double matrix_share = 0.68, memory_share = 0.865, link_share = 0.87;
// What the host's memory moved there with the link's copies beside AdamW, of what AdamW alone did.
constexpr double beside_link = 1.3;
constexpr double kernel = 1.8e-6;  // seconds

// A machine that is known by what is published of it.
struct Published {
  const char* name;
  const char* sheet;             // whose figures the peaks are
  double tflops;                 // dense bf16
  double device_gb, device_gbs;  // memory, and bytes/s of it
  const char* link;
  double link_gbs;           // each way
  double host_gb;            // memory that a process may have
  int host_threads;          // one core is left to feed the GPU
  const char* host_memory;   // where that figure comes from
  double adamw_gbs;          // what AdamW moves on the host
  const char* adamw_origin;  // where that comes from
};

HardwareProfile profile_of(const Published& p) {
  HardwareProfile profile;
  profile.name = p.name;
  profile.source = fmt::format(
      "{}: matrix products {} of {} TFLOP/s (dense bf16), device memory {} GB, {} of {} GB/s, {} {} of {} GB/s "
      "each way; these shares of the peaks are what an H200 was measured to reach, over PCIe 5.0 for the link. "
      "Host memory: {}. AdamW: {}; with the link's copies beside it {} times that, as measured beside the H200",
      p.sheet, matrix_share, p.tflops, p.device_gb, memory_share, p.device_gbs, p.link, link_share, p.link_gbs,
      p.host_memory, p.adamw_origin, beside_link);
  profile.device_memory = static_cast<std::size_t>(p.device_gb * GB);
  profile.host_memory = static_cast<std::size_t>(p.host_gb * GB);
  profile.host_threads = p.host_threads;
  profile.rates = {.gemm_flops = matrix_share * p.tflops * TFLOP,
                   .device_memory = memory_share * p.device_gbs * GB,
                   .link_to_host = link_share * p.link_gbs * GB,
                   .link_to_device = link_share * p.link_gbs * GB,
                   .host_adamw = p.adamw_gbs * GB,
                   .host_adamw_wide = p.adamw_gbs * GB,
                   .host_memory = beside_link * p.adamw_gbs * GB,
                   .kernel_seconds = kernel};
  return profile;
}

// AdamW with bf16 gradient and weight moves 28 bytes of host memory a parameter.
constexpr Published a100_40g{.name = "NVIDIA A100 40GB PCIe",
                             .sheet = "NVIDIA's data sheet of the A100",
                             .tflops = 312,
                             .device_gb = 40,
                             .device_gbs = 1555,
                             .link = "PCIe 4.0 x16",
                             .link_gbs = 31.5,
                             .host_gb = 128,
                             .host_threads = 15,
                             .host_memory = "128 GB are assumed, on a host of 16 cores",
                             .adamw_gbs = 102,
                             .adamw_origin = "assumed: half of the 205 GB/s of 8 channels of DDR4-3200"};
constexpr Published gb200{
    .name = "NVIDIA GB200, one of two GPUs",
    .sheet = "NVIDIA's data sheet of the GB200 NVL72",
    .tflops = 2500,
    .device_gb = 186,
    .device_gbs = 8000,
    .link = "NVLink-C2C",
    .link_gbs = 225,  // 450 for two GPUs
    .host_gb = 230,
    .host_threads = 35,
    .host_memory = "half of a Grace's 480 GB, less 10 GB for the system; half of its 72 cores; half of its link",
    .adamw_gbs = 170,
    .adamw_origin = "half of what is published for Grace: a billion parameters in 0.082 s, 28 bytes each, 341 GB/s"};
constexpr Published gh200{
    .name = "NVIDIA GH200 96GB",
    .sheet = "NVIDIA's data sheet of the GH200",
    .tflops = 990,
    .device_gb = 96,
    .device_gbs = 4000,
    .link = "NVLink-C2C",
    .link_gbs = 450,
    .host_gb = 470,
    .host_threads = 71,
    .host_memory = "480 GB, less 10 GB for the system",
    .adamw_gbs = 341,
    .adamw_origin =
        "published for Grace: a billion parameters in 0.082 s, 28 bytes each, 341 GB/s (the data sheet has up to 512)"};
constexpr Published h100_pcie{.name = "NVIDIA H100 PCIe",
                              .sheet = "NVIDIA's data sheet of the H100",
                              .tflops = 756,
                              .device_gb = 80,
                              .device_gbs = 2000,
                              .link = "PCIe 5.0 x16",
                              .link_gbs = 63,
                              .host_gb = 134,
                              .host_threads = 15,
                              .host_memory = "that of the machine on which the H200 was measured, 16 cores and 128 GiB",
                              .adamw_gbs = 141,
                              .adamw_origin = "as measured on that machine"};
constexpr Published rtx4090{.name = "NVIDIA GeForce RTX 4090",
                            .sheet = "NVIDIA's Ada white paper (165 TFLOP/s are those with fp32 sums)",
                            .tflops = 165,
                            .device_gb = 24,
                            .device_gbs = 1008,
                            .link = "PCIe 4.0 x16",
                            .link_gbs = 31.5,
                            .host_gb = 60,
                            .host_threads = 15,
                            .host_memory = "a desktop with 64 GB and 16 threads is assumed",
                            .adamw_gbs = 54,
                            .adamw_origin = "assumed: 0.6 of the 90 GB/s of 2 channels of DDR5-5600"};

// One memory for both processors. A plan knows two, so it is given nearly all of it as the device's: what the host
// would hold there the GPU can hold as well, and update sooner. The rest is what the process itself takes.
HardwareProfile mi300a() {
  constexpr double memory = 5300;
  HardwareProfile profile;
  profile.name = "AMD Instinct MI300A";
  profile.source = fmt::format(
      "AMD's data sheet of the MI300A: matrix products {0} of 980.6 TFLOP/s (dense bf16), {1} of 5300 GB/s; "
      "these shares of the peaks are what an NVIDIA H200 was measured to reach. CPU and GPU share one memory "
      "of 128 GB: the plan is given 116 GB as the device's and 8 GB as the host's, and 4 GB stay with the "
      "system, since moving state to the host would free nothing. There is no link: a copy reads and writes "
      "that memory, so half of its rate. AdamW on the CPU: 200 GB/s are assumed for 24 cores on three "
      "chiplets, neither measured nor published. For planning only: this program has no code for the GPU",
      matrix_share, memory_share);
  profile.device_memory = static_cast<std::size_t>(116 * GB);
  profile.host_memory = static_cast<std::size_t>(8 * GB);
  profile.host_threads = 23;
  const double copy = memory_share * memory * GB / 2;
  profile.rates = {.gemm_flops = matrix_share * 980.6 * TFLOP,
                   .device_memory = memory_share * memory * GB,
                   .link_to_host = copy,
                   .link_to_device = copy,
                   .host_adamw = 200 * GB,
                   .host_adamw_wide = 200 * GB,
                   .host_memory = memory * GB,
                   .kernel_seconds = kernel};
  return profile;
}

HardwareProfile h200() {
  HardwareProfile profile;
  profile.name = "NVIDIA H200";
  profile.source =
      "all measured on one H200 with 16 cores of an Intel Xeon and 128 GiB, driver 580, CUDA 13.0, 2026-11; AdamW "
      "varied from 96 to 177 GB/s with what else ran on the host, and with the link's copies from 170 to 210";
  profile.device_memory = static_cast<std::size_t>(149.4 * GB);
  profile.host_memory = static_cast<std::size_t>(134 * GB);
  profile.host_threads = 15;
  profile.rates = {.gemm_flops = 670 * TFLOP,
                   .device_memory = 4150 * GB,
                   .link_to_host = 55.2 * GB,
                   .link_to_device = 55.3 * GB,
                   .host_adamw = 141 * GB,
                   .host_adamw_wide = 141 * GB,
                   .host_memory = 185 * GB,
                   .kernel_seconds = kernel};
  return profile;
}

std::vector<KnownHardware> make_known() {
  return {{"a100-40g", profile_of(a100_40g)},
          {"gb200", profile_of(gb200)},
          {"gh200", profile_of(gh200)},
          {"h100-pcie", profile_of(h100_pcie)},
          {"h200", h200()},
          {"mi300a", mi300a()},
          {"rtx4090", profile_of(rtx4090)}};
}

}  // namespace

std::span<const std::pair<const char*, double MachineRates::*>> rate_names() { return rates; }

HardwareProfile parse_hardware(std::string_view text, const std::string& origin) {
  ordered_json json;
  try {
    const auto plain = with_plain_numbers(text);
    json = ordered_json::parse(plain ? std::string_view(*plain) : text,
                               [&](int depth, ordered_json::parse_event_t, ordered_json&) {
                                 if (depth > 8) fail("{}: nested more than 8 deep", printable_path(origin));
                                 return true;
                               });
  } catch (const nlohmann::json::exception&) {
    fail("{}: not valid JSON", printable_path(origin));
  }
  const Reader file(json, printable_path(origin));
  file.only([](const std::string& key) {
    for (const char* known : {"name", "source", "device_memory_bytes", "host_memory_bytes", "host_threads", "rates"})
      if (key == known) return true;
    return false;
  });
  HardwareProfile profile;
  profile.name = file.text("name");
  profile.source = file.text("source");
  profile.device_memory = static_cast<std::size_t>(file.positive("device_memory_bytes", most_bytes));
  profile.host_memory = static_cast<std::size_t>(file.positive("host_memory_bytes", most_bytes));
  profile.host_threads = static_cast<int>(std::ceil(file.positive("host_threads", 4096)));
  const Reader of(file.at("rates"), printable_path(origin), "rates.");
  of.only([](const std::string& key) {
    for (const auto& [known, member] : rates)
      if (key == known) return true;
    return false;
  });
  for (const auto& [key, member] : rates) profile.rates.*member = of.positive(key, most_rate);
  return profile;
}

std::string to_json(const HardwareProfile& profile) {
  ordered_json by_name;
  for (const auto& [key, member] : rates) by_name[key] = profile.rates.*member;
  return ordered_json{{"name", profile.name},
                      {"source", profile.source},
                      {"device_memory_bytes", profile.device_memory},
                      {"host_memory_bytes", profile.host_memory},
                      {"host_threads", profile.host_threads},
                      {"rates", by_name}}
             .dump(2) +
         "\n";
}

std::span<const KnownHardware> known_hardware() {
  static const std::vector<KnownHardware> known = make_known();
  return known;
}

std::string known_hardware_names() {
  std::string names;
  for (const KnownHardware& known : known_hardware())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", known.key);
  return names;
}

HardwareProfile resolve_hardware(const std::string& name_or_path) {
  if (path_exists(name_or_path)) {
    constexpr std::uint64_t most = 1 << 20;
    return parse_hardware(read_text_file(name_or_path, most), name_or_path);
  }
  for (const KnownHardware& known : known_hardware())
    if (known.key == name_or_path) return known.profile;
  fail("--hardware {}: no such file, and no machine of that name is known; known are {}", printable_path(name_or_path),
       known_hardware_names());
}

}  // namespace so
