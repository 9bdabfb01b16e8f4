#include "plan/hardware.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace so {
namespace {

using nlohmann::ordered_json;

// Rates by the names they have in the file.
constexpr std::pair<const char*, double MachineRates::*> rates[]{
    {"gemm_flops", &MachineRates::gemm_flops},       {"device_memory", &MachineRates::device_memory},
    {"link_to_host", &MachineRates::link_to_host},   {"link_to_device", &MachineRates::link_to_device},
    {"host_adamw_bf16", &MachineRates::host_memory}, {"host_adamw_fp32", &MachineRates::host_wide},
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
MachineRates from_peaks(double tflops, double device_gb, double link_gb, double host_gb) {
  return {.gemm_flops = tflops * TFLOP * 0.68,
          .device_memory = device_gb * GB * 0.865,
          .link_to_host = link_gb * GB * 0.87,
          .link_to_device = link_gb * GB * 0.87,
          .host_memory = host_gb * GB,
          .host_wide = host_gb * GB};
}

constexpr const char* shares =
    "; of each peak the share that an H200 reached: 0.68 of matrix products, 0.865 of memory, 0.87 of the link";

std::vector<KnownHardware> make_known() {
  const auto note = [](const char* text) { return std::string(text) + shares; };
  return {
      {"a100-40g",
       {"NVIDIA A100 40GB PCIe",
        note("NVIDIA's data sheet: 312 TFLOP/s bf16 dense, 1,555 GB/s, PCIe 4.0 x16 (31.5 GB/s); a host of 16 cores "
             "with 8 "
             "channels of DDR4-3200 (205 GB/s), of which AdamW is taken to reach 0.5"),
        static_cast<std::size_t>(40e9), static_cast<std::size_t>(128e9), 15, from_peaks(312, 1555, 31.5, 102)}},
      {"gb200",
       {"NVIDIA GB200, one of two GPUs",
        note("NVIDIA's data sheet: 2,500 TFLOP/s bf16 dense, 186 GB, 8 TB/s, NVLink-C2C 450 GB/s each way for two "
             "GPUs; half a "
             "Grace: 36 cores, 240 GB, 256 GB/s, of which AdamW is taken to reach 0.7"),
        static_cast<std::size_t>(186e9), static_cast<std::size_t>(230e9), 35, from_peaks(2500, 8000, 225, 179)}},
      {"gh200",
       {"NVIDIA GH200 96GB",
        note("NVIDIA's data sheet: 990 TFLOP/s bf16 dense, 96 GB, 4 TB/s, NVLink-C2C 450 GB/s each way; Grace: 72 "
             "cores, 480 GB, "
             "512 GB/s, of which AdamW reaches 0.7: 0.082 s for a billion parameters are published, 28 bytes each 341 "
             "GB/s"),
        static_cast<std::size_t>(96e9), static_cast<std::size_t>(470e9), 71, from_peaks(990, 4000, 450, 341)}},
      {"h100-pcie",
       {"NVIDIA H100 PCIe",
        note("NVIDIA's data sheet: 756 TFLOP/s bf16 dense, 80 GB, 2.0 TB/s, PCIe 5.0 x16 (63 GB/s); the host of the "
             "H200 here"),
        static_cast<std::size_t>(80e9), static_cast<std::size_t>(134e9), 15, from_peaks(756, 2000, 63, 160)}},
      {"h200",
       {"NVIDIA H200",
        "measured on one H200 with 16 cores of an Intel Xeon and 128 GiB, driver 580, CUDA 13.0, 2026-11; AdamW varied "
        "from 96 "
        "to 177 GB/s with what else ran on the host",
        static_cast<std::size_t>(149.4e9),
        static_cast<std::size_t>(134e9),
        15,
        {.gemm_flops = 670e12,
         .device_memory = 4150e9,
         .link_to_host = 55.2e9,
         .link_to_device = 55.3e9,
         .host_memory = 165e9,
         .host_wide = 165e9}}},
      {"rtx4090",
       {"NVIDIA GeForce RTX 4090",
        note("NVIDIA's data sheet: 165 TFLOP/s bf16 dense with fp32 sums, 24 GB, 1,008 GB/s, PCIe 4.0 x16 (31.5 GB/s); "
             "a "
             "desktop with 64 GB in 2 channels of DDR5-5600 (90 GB/s), of which AdamW is taken to reach 0.7"),
        static_cast<std::size_t>(24e9), static_cast<std::size_t>(60e9), 15, from_peaks(165, 1008, 31.5, 63)}},
  };
}

}  // namespace

HardwareProfile parse_hardware(std::string_view text, const std::string& origin) {
  ordered_json json;
  try {
    json = ordered_json::parse(text, [&](int depth, ordered_json::parse_event_t, ordered_json&) {
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
  std::error_code ignored;
  if (std::filesystem::exists(name_or_path, ignored)) {
    constexpr std::uint64_t most = 1 << 20;
    return parse_hardware(read_text_file(name_or_path, most), name_or_path);
  }
  for (const KnownHardware& known : known_hardware())
    if (known.key == name_or_path) return known.profile;
  fail("--hardware {}: no such file, and no machine of that name is known; known are {}", printable_path(name_or_path),
       known_hardware_names());
}

}  // namespace so
