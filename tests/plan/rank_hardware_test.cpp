// One rank's part of a host with several GPUs, and what a hardware file says of them.
#include "plan/machine/rank_hardware.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/presets.h"
#include "support/errors.h"

namespace so {
namespace {

using nlohmann::json;

json h200_file() {
  for (const Preset& preset : hardware_presets())
    if (preset.name == "h200") return json::parse(preset.json);
  return {};
}
HardwareProfile parsed(const json& file) { return parse_hardware(file.dump(), "mine.json"); }

TEST(RankHardware, OneRankHasTheProfileAsItIs) {
  const HardwareProfile h200 = resolve_hardware("h200"), rtx = resolve_hardware("rtx4090");
  EXPECT_EQ(rank_hosts(rtx, "rtx4090", 1, std::nullopt).per_host, 1);
  const HardwareProfile part = part_of_rank(h200, rank_hosts(h200, "h200", 1, std::nullopt));
  EXPECT_EQ(part.host_memory, h200.host_memory);
  EXPECT_EQ(part.rates.link_both, std::numeric_limits<double>::infinity());
  EXPECT_EQ(part.rates.collectives.seconds, 0);
}

TEST(RankHardware, RanksOfOneHostShareWhatItHas) {
  const HardwareProfile h200 = resolve_hardware("h200");
  const RankHosts ranks = rank_hosts(h200, "h200", 4, std::nullopt);
  EXPECT_EQ(ranks.per_host, 4);
  EXPECT_EQ(ranks.hosts(), 1);
  const HardwareProfile part = part_of_rank(h200, ranks);
  EXPECT_EQ(part.device_memory, h200.device_memory);
  EXPECT_EQ(part.host_memory, 134'000'000'000u);
  EXPECT_EQ(part.host_threads, 12);
  EXPECT_DOUBLE_EQ(part.rates.link_to_host, 119e9 / 4);
  EXPECT_DOUBLE_EQ(part.rates.link_to_device, 147e9 / 4);
  EXPECT_DOUBLE_EQ(part.rates.link_both, 149e9 / 4);
  EXPECT_DOUBLE_EQ(part.rates.host_adamw, 204e9 / 4);
  EXPECT_EQ(part.rates.gemm_flops, h200.rates.gemm_flops);
  EXPECT_DOUBLE_EQ(part.rates.collectives.bytes, 395e9);
  EXPECT_NEAR(part.rates.collectives.seconds, (8.4 + 3 * 3.4) * 1e-6, 1e-12);
  for (const int gpus : {2, 3, 4}) {
    const HardwareProfile some = part_of_rank(h200, rank_hosts(h200, "h200", gpus, std::nullopt));
    EXPECT_LE(some.rates.link_to_host, h200.rates.link_to_host) << "no GPU is quicker than alone";
    EXPECT_LE(some.rates.host_adamw, h200.rates.host_adamw);
    EXPECT_GE(some.rates.host_adamw, part.rates.host_adamw);
    EXPECT_GE(some.host_memory, part.host_memory);
  }
}

TEST(RankHardware, WhatOneGpuWasMeasuredWithIsNoMeasurementOfARanksPart) {
  const HardwareProfile h200 = resolve_hardware("h200");
  const auto measured = [&](int gpus, const std::string& key) {
    const HardwareProfile part = part_of_rank(h200, rank_hosts(h200, "h200", gpus, std::nullopt));
    return std::count(part.measured->begin(), part.measured->end(), key);
  };
  EXPECT_EQ(measured(1, "link_to_host"), 1);
  EXPECT_EQ(measured(2, "link_to_host"), 0);
  EXPECT_EQ(measured(4, "link_to_host"), 1);
  EXPECT_EQ(measured(3, "link_to_host"), 0) << "of a host with four";
  for (const int gpus : {1, 2, 4}) EXPECT_EQ(measured(gpus, "gemm_flops"), 1);
  EXPECT_EQ(measured_status(part_of_rank(h200, rank_hosts(h200, "h200", 2, std::nullopt))), "measured in part");
}

TEST(RankHardware, SeveralHostsMeetOverTheirAdapters) {
  const HardwareProfile h200 = resolve_hardware("h200");
  const RankHosts ranks = rank_hosts(h200, "h200", 64, std::nullopt);
  EXPECT_EQ(ranks.per_host, 4);
  EXPECT_EQ(ranks.hosts(), 16);
  const HardwareProfile part = part_of_rank(h200, ranks);
  EXPECT_DOUBLE_EQ(part.rates.collectives.bytes, 4 * 50e9);
  EXPECT_NEAR(part.rates.collectives.seconds, (8.4 + 48 * 3.4 + 15 * 9.6) * 1e-6, 1e-12);
  const HardwareProfile apart = part_of_rank(h200, rank_hosts(h200, "h200", 8, 1));
  EXPECT_EQ(apart.host_memory, h200.host_memory) << "a host with one GPU is what the profile is about";
  EXPECT_EQ(apart.rates.host_adamw, h200.rates.host_adamw);
  EXPECT_DOUBLE_EQ(apart.rates.collectives.bytes, 50e9);
}

// Of the seven others of a group of eight on hosts of four, three are near and four far.
TEST(RankHardware, AGroupReceivesOfNearAndFarRanksAtOnce) {
  HardwareProfile machine = resolve_hardware("h200");
  machine.between_gpus = {
      .peer = 400e9, .network = 50e9, .collective_seconds = 1e-5, .peer_seconds = 1e-6, .network_seconds = 1e-4};
  const RankHosts hosts = rank_hosts(machine, "h200", 8, 4);
  const auto of = [&](int sequence) { return part_of_rank(machine, hosts, sequence).rates.sequence; };
  EXPECT_DOUBLE_EQ(of(2).bytes, 400e9);
  EXPECT_DOUBLE_EQ(of(4).bytes, 400e9);
  EXPECT_DOUBLE_EQ(of(4).seconds, 1e-5 + 3e-6);
  EXPECT_DOUBLE_EQ(of(8).bytes, 50e9 * 7 / 4);
  EXPECT_DOUBLE_EQ(of(8).seconds, 1e-5 + 3e-6 + 4e-4);
  EXPECT_EQ(of(1).seconds, 0);
  const auto apart = part_of_rank(machine, rank_hosts(machine, "h200", 12, 4), 6).rates.sequence;
  EXPECT_DOUBLE_EQ(apart.bytes, 50e9 * 5 / 4) << "ranks 6 and 7 of the second group share a host with two of the first";
}

TEST(RankHardware, WhatTheFileDoesNotSayIsRefusedByKey) {
  const auto refused = [](const json& file, int ranks, std::optional<int> per_host,
                          std::initializer_list<std::string> needles) {
    test::expect_in(test::refusal([&] { rank_hosts(parsed(file), "mine", ranks, per_host); }), needles);
  };
  json file = h200_file();
  refused(file, 6, std::nullopt, {"--gpus 6", "4 GPUs each", "--gpus_per_host"});
  EXPECT_EQ(rank_hosts(parsed(file), "mine", 6, 3).hosts(), 2);
  refused(file, 8, 8, {"--gpus_per_host 8", "up to 4"});
  refused(file, 2, 4, {"--gpus_per_host 4", "there are 2"});
  json lacking = file;
  lacking.erase("sources");
  lacking["between_gpus"].erase("network");
  lacking["between_gpus"].erase("network_seconds");
  EXPECT_EQ(rank_hosts(parsed(lacking), "mine", 4, std::nullopt).hosts(), 1);
  refused(lacking, 8, std::nullopt, {"--gpus 8", "mine", "between_gpus.network: missing"});
  lacking.erase("hosts");
  refused(lacking, 2, std::nullopt, {"--gpus 2", "hosts: missing"});
  lacking.erase("between_gpus");
  refused(lacking, 2, std::nullopt, {"--gpus 2", "between_gpus: missing"});
}

TEST(RankHardware, AFileOfSeveralGpusIsReadKeyByKey) {
  const auto refused = [](const json& file, std::initializer_list<std::string> needles) {
    test::expect_in(test::refusal([&] { parsed(file); }), needles);
  };
  const json good = h200_file();
  ASSERT_EQ(parsed(good).hosts.size(), 2u);
  json file = good;
  file["hosts"][1]["gpus"] = 2;
  refused(file, {"mine.json: hosts[1].gpus", "above 2"});
  file["hosts"][1]["gpus"] = 4.5;
  refused(file, {"hosts[1].gpus", "whole number"});
  file = good;
  file["hosts"][0]["rates"].erase("link_both");
  refused(file, {"hosts[0].rates.link_both: missing"});
  file = good;
  file["hosts"][0]["sources"]["speed"] = "a guess";
  refused(file, {"hosts[0].sources.speed", "not a key"});
  file = good;
  file["hosts"] = 4;
  refused(file, {"hosts: expected a list"});
  file = good;
  file["between_gpus"].erase("network_seconds");
  refused(file, {"between_gpus.network_seconds: missing"});
  file["between_gpus"]["peers"] = 1;
  refused(file, {"between_gpus.peers", "not a key"});
}

}  // namespace
}  // namespace so
