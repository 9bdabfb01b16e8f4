// Measured rates that are kept: found again by whom they hold for, and never trusted when damaged, foreign or old.
#include "plan/machine/rate_cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "plan/plan_comparison.h"
#include "support/files.h"

namespace so {
namespace {

using nlohmann::json;

constexpr std::time_t now = 1'760'000'000, day = 24 * 60 * 60;  // 2025-10-09

RateKey some_key() { return {"NVIDIA H200", "Xeon", 15, "0.1", "bfloat16", "float32"}; }

HardwareProfile some_profile() {
  HardwareProfile profile = resolve_hardware("h200");
  profile.rates.host_adamw = 123e9;
  profile.rates.adamw = {.tile = 1 << 15, .prefetch = 512};
  return profile;
}

class Rates : public testing::Test {
 protected:
  bool found(const RateKey& key = some_key(), std::time_t at = now) { return cache_.find(key, at).has_value(); }
  void spoil(const std::string& text) { test::write_file(cache_.path_of(some_key()), text); }
  json stored() { return json::parse(test::read_file(cache_.path_of(some_key()))); }

  const test::TemporaryDirectory directory_;
  const RateCache cache_{directory_ / "made when needed"};
};

TEST_F(Rates, AreFoundAgainForAMonth) {
  EXPECT_FALSE(found());
  cache_.store(some_key(), some_profile(), now);
  const auto rates = cache_.find(some_key(), now);
  ASSERT_TRUE(rates);
  EXPECT_EQ(rates->rates.host_adamw, 123e9);
  EXPECT_EQ(rates->rates.adamw, some_profile().rates.adamw);
  EXPECT_EQ(rates->rates.gemm_flops, some_profile().rates.gemm_flops);
  EXPECT_EQ(rates->date, "2025-10-09");
  EXPECT_TRUE(found(some_key(), now + 30 * day));
  EXPECT_FALSE(found(some_key(), now + 30 * day + 1));
  EXPECT_TRUE(found(some_key(), now - day)) << "another machine's clock";
  EXPECT_FALSE(found(some_key(), now - day - 1));
  HardwareProfile other = some_profile();
  other.rates.host_adamw = 99e9;
  cache_.store(some_key(), other, now + day);
  EXPECT_EQ(cache_.find(some_key(), now + day)->rates.host_adamw, 99e9);
}

TEST_F(Rates, HoldForWhatTheyWereMeasuredWith) {
  cache_.store(some_key(), some_profile(), now);
  const auto changed = [](auto change) {
    RateKey key = some_key();
    change(key);
    return key;
  };
  for (const RateKey& key :
       {changed([](RateKey& k) { k.gpu = "NVIDIA H100"; }), changed([](RateKey& k) { k.cpu = "EPYC"; }),
        changed([](RateKey& k) { k.threads = 7; }), changed([](RateKey& k) { k.program = "0.2"; }),
        changed([](RateKey& k) { k.activations = "float32"; }), changed([](RateKey& k) { k.moments = "bfloat16"; })}) {
    EXPECT_FALSE(found(key));
    // Nor when the file is where theirs would be.
    std::filesystem::copy_file(cache_.path_of(some_key()), cache_.path_of(key));
    EXPECT_FALSE(found(key));
  }
  EXPECT_TRUE(found());
}

// Files of earlier versions name the activations' format "compute".
TEST_F(Rates, AreKeptUnderTheNamesOfEarlierVersions) {
  cache_.store(some_key(), some_profile(), now);
  EXPECT_EQ(stored()["key"], json({{"gpu", "NVIDIA H200"},
                                   {"cpu", "Xeon"},
                                   {"threads", 15},
                                   {"program", "0.1"},
                                   {"compute", "bfloat16"},
                                   {"moments", "float32"}}));
}

TEST_F(Rates, OfDamagedOrForeignFilesAreNotUsed) {
  cache_.store(some_key(), some_profile(), now);
  const std::string whole = test::read_file(cache_.path_of(some_key()));
  ASSERT_TRUE(found());
  for (std::size_t kept = 0; kept + 2 < whole.size(); kept += 1 + whole.size() / 97) {
    spoil(whole.substr(0, kept));
    EXPECT_FALSE(found()) << "cut short to " << kept;
  }
  for (const char* text : {"[]", "3", "null", "{}", "\xff", "{\"key\":1,\"hardware\":2,\"measured_at\":3}"}) {
    spoil(text);
    EXPECT_FALSE(found()) << text;
  }
  const auto with = [&](auto change) {
    json file = json::parse(whole);
    change(file);
    spoil(file.dump());
    return found();
  };
  EXPECT_TRUE(with([](json&) {}));
  EXPECT_FALSE(with([](json& f) { f["hardware"]["rates"].erase("link_to_host"); }));
  EXPECT_FALSE(with([](json& f) { f["hardware"]["rates"]["link_to_host"] = -1; }));
  EXPECT_FALSE(with([](json& f) { f["hardware"]["rates"]["link_to_host"] = "fast"; }));
  EXPECT_FALSE(with([](json& f) { f["measured_at"] = "today"; }));
  EXPECT_FALSE(with([](json& f) { f["measured_at"] = 1e300; }));
  EXPECT_FALSE(with([](json& f) { f.erase("key"); }));
  spoil(std::string(2 << 20, ' '));
  EXPECT_FALSE(found());
  std::filesystem::remove(cache_.path_of(some_key()));
  std::filesystem::create_directory(cache_.path_of(some_key()));
  EXPECT_FALSE(found());
}

TEST_F(Rates, AreTrustedIfThisUserAloneCanWriteThem) {
  const mode_t old = ::umask(0);
  cache_.store(some_key(), some_profile(), now);
  ::umask(old);
  EXPECT_TRUE(found()) << "whatever the umask is";
  const std::filesystem::path path = cache_.path_of(some_key());
  std::filesystem::permissions(path, static_cast<std::filesystem::perms>(0622));
  EXPECT_FALSE(found());
  std::filesystem::permissions(path, static_cast<std::filesystem::perms>(0644));
  EXPECT_TRUE(found());
  std::filesystem::rename(path, directory_ / "other");
  std::filesystem::create_symlink(directory_ / "other", path);
  EXPECT_FALSE(found());
}

TEST_F(Rates, ThatCannotBeKeptEndNoRun) {
  test::write_file(directory_ / "file", "");
  const RateCache nowhere(directory_ / "file");
  nowhere.store(some_key(), some_profile(), now);
  EXPECT_FALSE(nowhere.find(some_key(), now).has_value());
}

TEST_F(Rates, AreDroppedByARunThatIsOffByATenth) {
  const auto drops = [&](double measured) {
    const std::vector<PlannedFigure> figures{{"overlap_efficiency", 1, 0.5}, {"step_seconds", 2, measured}};
    return drop_wrong_rates(figures, cache_, some_key());
  };
  EXPECT_FALSE(drops(4)) << "there are none";
  cache_.store(some_key(), some_profile(), now);
  for (const double near : {1.82, 2.0, 2.18}) EXPECT_FALSE(drops(near)) << near;
  EXPECT_FALSE(drop_wrong_rates({}, cache_, some_key())) << "nothing was planned, or measured";
  RateKey other = some_key();
  other.ranks = 2;
  cache_.store(other, some_profile(), now);
  for (const double off : {1.78, 2.22}) {
    cache_.store(some_key(), some_profile(), now);
    EXPECT_TRUE(drops(off)) << off;
    EXPECT_FALSE(found());
  }
  EXPECT_TRUE(found(other)) << "of other runs";
}

TEST_F(Rates, OfTheCpuDeviceAreNotMeasuredAndNotKept) {
  Runtime runtime(DeviceChoice::cpu, 1);
  PlanningMachine machine = planning_machine(runtime, NumberFormats());
  ::setenv("XDG_CACHE_HOME", directory_.path().c_str(), 1);
  use_cached_rates(machine, runtime, NumberFormats(), {});
  EXPECT_EQ(machine.rates_origin, "measured");
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

// As on a GPU, whose runs are those that plan by rates.
TEST_F(Rates, AreMeasuredOnceAndAnewWhenAsked) {
  Runtime runtime(DeviceChoice::cpu, 1);
  ::setenv("XDG_CACHE_HOME", directory_.path().c_str(), 1);
  int measured = 0;
  const auto rates = [&](RateUse use) {
    PlanningMachine machine = planning_machine(runtime, model_formats(DType::bf16));
    machine.backend = &cuda_backend();
    machine.device_memory = 1 << 30;
    machine.rates = [&measured] {
      MachineRates r = some_profile().rates;
      r.host_memory = 1e9 * ++measured;
      return r;
    };
    use_cached_rates(machine, runtime, model_formats(DType::bf16), use);
    const int before = measured;
    const double rate = machine.rates().host_memory;
    EXPECT_EQ(machine.rates_origin.find("--profile fresh") != std::string::npos, measured == before);
    return rate;
  };
  EXPECT_EQ(rates({.fresh = false, .keep = false}), 1e9) << "a dry run measures";
  EXPECT_EQ(rates({.fresh = false, .keep = true}), 2e9) << "and leaves nothing behind";
  EXPECT_EQ(rates({.fresh = false, .keep = true}), 2e9);
  EXPECT_EQ(rates({.fresh = false, .keep = false}), 2e9);
  EXPECT_EQ(measured, 2);
  EXPECT_EQ(adamw_tuning(), some_profile().rates.adamw) << "rates hold for the way they were measured in";
  adamw_use_tuning({});
  EXPECT_EQ(rates({.fresh = true, .keep = true}), 3e9);
  EXPECT_EQ(rates({.fresh = false, .keep = true}), 3e9);
  EXPECT_EQ(measured, 3);
  EXPECT_TRUE(RateCache::of_user()->drop(rate_key(runtime, model_formats(DType::bf16))));
  EXPECT_EQ(rates({.fresh = false, .keep = true}), 4e9);
}

}  // namespace
}  // namespace so
