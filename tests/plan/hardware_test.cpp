// Hardware files: what is written reads back, and what is not one is refused by key.
#include "plan/machine/hardware.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/presets.h"
#include "support/errors.h"
#include "support/files.h"

namespace so {
namespace {

using nlohmann::json;

json some() { return json::parse(to_json(resolve_hardware("h200"))); }

void expect_refused(const json& file, std::initializer_list<std::string> needles) {
  test::expect_in(test::refusal([&] { parse_hardware(file.dump(), "mine.json"); }), needles);
}

TEST(Hardware, WhatIsWrittenReadsBack) {
  for (const KnownHardware& known : known_hardware()) {
    const HardwareProfile& p = known.profile;
    const HardwareProfile read = parse_hardware(to_json(p), "file");
    EXPECT_EQ(read.name, p.name);
    EXPECT_EQ(read.source, p.source);
    EXPECT_EQ(read.device_memory, p.device_memory);
    EXPECT_EQ(read.host_memory, p.host_memory);
    EXPECT_EQ(read.one_memory, p.one_memory);
    EXPECT_EQ(read.host_threads, p.host_threads);
    for (const auto member : {&MachineRates::gemm_flops, &MachineRates::device_memory, &MachineRates::link_to_host,
                              &MachineRates::link_to_device, &MachineRates::host_adamw, &MachineRates::host_adamw_wide,
                              &MachineRates::host_memory}) {
      EXPECT_EQ(read.rates.*member, p.rates.*member) << known.key;
      EXPECT_GT(p.rates.*member, 1e9) << known.key;
    }
    EXPECT_EQ(read.rates.kernel_seconds, p.rates.kernel_seconds);
    EXPECT_GT(p.rates.kernel_seconds, 1e-7);
  }
}

TEST(Hardware, HasHowAdamWGoesThroughMemory) {
  HardwareProfile profile = resolve_hardware("h200");
  EXPECT_EQ(profile.rates.adamw, AdamWTuning()) << "where a file says nothing";
  profile.rates.adamw = {.tile = 1 << 15, .prefetch = 512};
  EXPECT_EQ(parse_hardware(to_json(profile), "file").rates.adamw, profile.rates.adamw);
  for (const auto& [key, wrong] : {std::pair{"tile_elements", json(1000)},
                                   {"tile_elements", json(0)},
                                   {"tile_elements", json("8192")},
                                   {"prefetch_elements", json(-1)},
                                   {"prefetch_elements", json(0.5)},
                                   {"prefetch_elements", json(1e9)}}) {
    json file = some();
    file["adamw"][key] = wrong;
    expect_refused(file, {"mine.json: adamw: expected", "multiple of 32"});
  }
  json file = some();
  file["adamw"]["threads"] = 1;
  expect_refused(file, {"adamw.threads", "not a key"});
}

TEST(Hardware, KnownMachinesAreSortedAndSayWhereTheirFiguresComeFrom) {
  const auto all = known_hardware();
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.key < b.key; }));
  for (const KnownHardware& known : all) {
    const std::string& source = known.profile.source;
    if (source.find("all measured on") != std::string::npos) continue;
    test::expect_in(source, {"matrix products", "memory", "AdamW", "measured"});
    EXPECT_TRUE(source.find("data sheet") != std::string::npos || source.find("white paper") != std::string::npos)
        << known.key;
  }
}

TEST(Hardware, EveryConstantOfAKnownMachineSaysWhereItComesFrom) {
  for (const Preset& preset : hardware_presets()) {
    const json file = json::parse(preset.json);
    std::vector<std::string> constants{"device_memory_bytes", "host_memory_bytes", "host_threads"};
    for (const char* table : {"rates", "efficiencies", "between_gpus"})
      if (file.contains(table))
        for (const auto& [key, value] : file[table].items()) constants.push_back(key);
    EXPECT_EQ(file["sources"].size(), constants.size()) << preset.name;
    for (const std::string& key : constants)
      EXPECT_GT(file["sources"].value(key, "").size(), 5u) << preset.name << ": " << key;
    for (const json& host : file.value("hosts", json::array())) {
      std::vector<std::string> shared{"host_memory_bytes", "host_threads"};
      for (const auto& [key, value] : host["rates"].items()) shared.push_back(key);
      EXPECT_EQ(host["sources"].size(), shared.size()) << preset.name;
      for (const std::string& key : shared)
        EXPECT_GT(host["sources"].value(key, "").size(), 5u) << preset.name << ": " << host["gpus"] << ": " << key;
    }
  }
}

TEST(Hardware, FiguresOfKnownMachinesLieWithinBounds) {
  for (const KnownHardware& known : known_hardware()) {
    SCOPED_TRACE(known.key);
    const HardwareProfile& p = known.profile;
    const MachineRates& r = p.rates;
    EXPECT_GE(p.device_memory, 24'000'000'000u);
    EXPECT_LE(p.device_memory, 288'000'000'000u);
    EXPECT_GT(r.gemm_flops, 40e12);
    EXPECT_LT(r.gemm_flops, 0.8 * 2500e12);
    if (!p.one_memory) {  // where a copy stays within it
      EXPECT_GT(r.device_memory, 8 * std::max(r.link_to_host, r.link_to_device)) << "of what use would offloading be?";
      EXPECT_LE(std::max(r.link_to_host, r.link_to_device), 450e9) << "more than NVLink-C2C has";
      EXPECT_LE(r.host_adamw, r.host_memory);
      EXPECT_LE(r.host_memory, 400e9) << "more than any of their hosts has";
    }
    EXPECT_GE(p.host_threads, 8);
    EXPECT_LE(p.host_threads, 128);
    for (const OtherRates& other : p.other_rates)
      for (const auto& [name, value] : other.rates) EXPECT_GT(value, 1e9) << name;
  }
  // GeForce cards sum in fp32 at half of the rate; all are ordered as their generations are.
  const auto rates = [](const char* key) { return resolve_hardware(key).rates; };
  const auto rising = [&](std::initializer_list<const char*> keys, double MachineRates::*member) {
    double last = 0;
    for (const char* key : keys) {
      EXPECT_GT(rates(key).*member, last) << key;
      last = rates(key).*member;
    }
  };
  rising({"rtx3090", "rtx4090", "rtx5090", "a100-80g", "l40s", "rtxpro6000", "h200", "b200", "dgx-station"},
         &MachineRates::gemm_flops);
  rising({"l40s", "rtx3090", "rtx4090", "rtx5090", "a100-80g", "h100-sxm", "h200", "dgx-station", "b200"},
         &MachineRates::device_memory);
  EXPECT_NEAR(rates("rtxpro6000").gemm_flops / rates("rtx5090").gemm_flops, 2.4, 0.1) << "full rate, and more of it";
  EXPECT_EQ(rates("rtxpro6000").device_memory, rates("rtx5090").device_memory);
  EXPECT_EQ(rates("rtx3090").link_to_host, rates("a100-80g").link_to_host);
  EXPECT_EQ(rates("gh200").link_to_device, 345e9);
  EXPECT_EQ(rates("gh200").link_to_host, 295e9);
}

TEST(Hardware, SaysWhatWasMeasured) {
  const auto status = [](const char* key) { return measured_status(resolve_hardware(key)); };
  for (const char* key : {"h200", "h100-sxm"}) EXPECT_EQ(status(key), "measured") << key;
  for (const KnownHardware& known : known_hardware()) {
    ASSERT_TRUE(known.profile.measured) << known.key;
    if (known.key == "h200" || known.key == "h100-sxm") continue;
    EXPECT_EQ(measured_status(known.profile), "planned") << known.key;
    EXPECT_EQ(measured_text(known.profile), "planned; nothing was measured on one") << known.key;
  }
  json file = some();
  file["measured"] = {"gemm_flops", "host_memory_bytes"};
  const HardwareProfile part = parse_hardware(file.dump(), "mine.json");
  EXPECT_EQ(measured_status(part), "measured in part");
  test::expect_in(measured_text(part), {"gemm_flops, host_memory_bytes"});
  EXPECT_EQ(parse_hardware(to_json(part), "file").measured, part.measured);
  file.erase("measured");
  EXPECT_EQ(measured_status(parse_hardware(file.dump(), "mine.json")), "unknown");
  file["measured"] = {"speed"};
  expect_refused(file, {"mine.json: measured: \"speed\": not a constant"});
  file["measured"] = "all";
  expect_refused(file, {"mine.json: measured: expected a list"});
}

TEST(Hardware, SaysWhereMemoryIsSoldered) {
  for (const char* key : {"gh200", "gb200", "dgx-station", "dgx-spark", "mi300a"})
    EXPECT_TRUE(resolve_hardware(key).fixed_memory) << key;
  for (const char* key : {"h200", "rtx4090"}) EXPECT_FALSE(resolve_hardware(key).fixed_memory) << key;
  json file = some();
  file["fixed_memory"] = 1;
  expect_refused(file, {"mine.json: fixed_memory: expected true or false"});
}

TEST(Hardware, OtherRatesChangeWhatTheyNameAndWhatSeveralGpusShareOfIt) {
  const HardwareProfile gh200 = resolve_hardware("gh200");
  ASSERT_EQ(gh200.other_rates.size(), 1u);
  const HardwareProfile slower = with_rates(gh200, gh200.other_rates[0]);
  EXPECT_EQ(gh200.other_rates[0].what, "AdamW at 224 GB/s");
  EXPECT_EQ(gh200.rates.host_adamw, 341e9);
  EXPECT_EQ(slower.rates.host_adamw, 224e9);
  EXPECT_EQ(slower.rates.host_adamw_wide, 224e9);
  EXPECT_EQ(slower.rates.link_to_host, gh200.rates.link_to_host);
  EXPECT_DOUBLE_EQ(slower.hosts[0].rates.host_adamw, 8 * 224e9);
  EXPECT_EQ(slower.hosts[0].rates.link_to_host, gh200.hosts[0].rates.link_to_host);

  json file = some();
  file["other_rates"] = {{{"what", "a quick link"}, {"source", "a test"}, {"rates", {{"link_to_host", 1e11}}}}};
  EXPECT_EQ(parse_hardware(file.dump(), "mine.json").other_rates.at(0).rates.at(0).second, 1e11);
  file["other_rates"][0]["rates"] = json::object();
  expect_refused(file, {"mine.json: other_rates[0].rates: names no rate"});
  file["other_rates"][0]["rates"] = {{"speed", 1}};
  expect_refused(file, {"mine.json: other_rates[0].rates.speed", "not a key"});
  file["other_rates"][0]["rates"] = {{"link_to_host", -1}};
  expect_refused(file, {"other_rates[0].rates.link_to_host", "positive number"});
  file["other_rates"] = 1;
  expect_refused(file, {"mine.json: other_rates: expected a list"});
}

TEST(Hardware, EfficienciesAreTheH200sWhereAFileSaysNone) {
  const Efficiencies& measured = h200_efficiencies();
  EXPECT_FALSE(some().contains("efficiencies"));
  for (const KnownHardware& known : known_hardware())
    for (const auto& [key, member] : efficiency_names())
      EXPECT_EQ(known.profile.rates.efficiencies.*member, measured.*member) << known.key << ": " << key;
  json file = some();
  for (const auto& [key, member] : efficiency_names()) file["efficiencies"][key] = 0.5;
  for (const auto& [key, member] : efficiency_names())
    EXPECT_EQ(parse_hardware(file.dump(), "mine.json").rates.efficiencies.*member, 0.5) << key;
  file["efficiencies"].erase("experts");
  expect_refused(file, {"mine.json: efficiencies.experts", "missing"});
  file = some();
  file["sources"] = {{"link_to_host", "a guess"}};
  EXPECT_NO_THROW(parse_hardware(file.dump(), "mine.json"));
  file["sources"] = {{"link", "a guess"}};
  expect_refused(file, {"mine.json: sources.link", "not a key of a hardware file"});
}

TEST(Hardware, OneMemoryForBothIsSaidOnce) {
  const HardwareProfile p = resolve_hardware("mi300a");
  EXPECT_TRUE(p.one_memory);
  EXPECT_LE(p.device_memory, 128e9);
  test::expect_in(p.source, {"share one memory of 128 GB", "assumed"});
  json file = some();
  EXPECT_FALSE(parse_hardware(file.dump(), "mine.json").one_memory);
  file["one_memory"] = false;
  EXPECT_FALSE(parse_hardware(file.dump(), "mine.json").one_memory);
  file["one_memory"] = true;
  expect_refused(file, {"mine.json: one_memory", "device_memory_bytes and host_memory_bytes must be the same"});
  file["host_memory_bytes"] = file["device_memory_bytes"];
  EXPECT_TRUE(parse_hardware(file.dump(), "mine.json").one_memory);
  file["one_memory"] = 1;
  expect_refused(file, {"mine.json: one_memory", "expected true or false"});
}

TEST(Hardware, AFileWinsAndAnUnknownNameListsTheKnown) {
  const test::TemporaryDirectory directory;
  json file = some();
  file["name"] = "Mine";
  test::write_file(directory / "h200", file.dump());
  EXPECT_EQ(resolve_hardware((directory / "h200").string()).name, "Mine");
  test::expect_in(test::refusal([] { resolve_hardware("h300"); }),
                  {"--hardware h300", "gh200, h100-pcie, h100-sxm, h200", "rtx3090, rtx4090, rtx5090"});
}

TEST(Hardware, WhatIsNoHardwareFileIsRefusedByKey) {
  for (const char* key : {"name", "source", "device_memory_bytes", "host_memory_bytes", "host_threads", "rates"}) {
    json file = some();
    file.erase(key);
    expect_refused(file, {"mine.json: ", key, "missing"});
  }
  for (const json& wrong : {json(0), json(-1), json("1"), json(1e30), json(nullptr)}) {
    json file = some();
    file["rates"]["link_to_host"] = wrong;
    expect_refused(file, {"mine.json: rates.link_to_host", "positive number"});
    file = some();
    file["device_memory_bytes"] = wrong;
    expect_refused(file, {"device_memory_bytes", "positive number"});
  }
  json file = some();
  file["rates"]["speed"] = 1;
  expect_refused(file, {"rates.speed", "not a key of a hardware file"});
  file = some();
  file["gpu\n"] = 1;
  expect_refused(file, {"gpu\\x0a", "not a key"});
  file = some();
  file["rates"] = 3;
  expect_refused(file, {"rates.", "JSON object"});
  test::expect_in(test::refusal([] { parse_hardware("{", "mine.json"); }), {"mine.json: not valid JSON"});
  test::expect_in(test::refusal([] { parse_hardware(std::string(1000, '['), "mine.json"); }), {"8 deep"});
}

}  // namespace
}  // namespace so
