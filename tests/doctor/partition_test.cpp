// Memory partitions, on trees that refuse what a kernel's resctrl refuses.
#include "doctor/partition/partition.h"

#include <bit>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/proc_text.h"
#include "doctor/machine_tree.h"

namespace so {
namespace {

// A resctrl file system below a folder: groups are made with the files that a kernel puts there, a CPU is in one group,
// and masks and percentages are checked as Documentation/filesystems/resctrl.rst says.
class FakeResctrl : public MachineFiles {
 public:
  explicit FakeResctrl(const std::filesystem::path& root) : MachineFiles(root) {}

  bool root_rights = true;
  std::string refused_resource;  // that the kernel takes no line of

  bool is_root() const override { return root_rights; }

  void make_directory(std::string_view path) override {
    MachineFiles::make_directory(path);
    const std::string group(path);
    MachineFiles::write(group + "/schemata", text("/sys/fs/resctrl/schemata").value_or("") + "\n");
    MachineFiles::write(group + "/cpus_list", "\n");
    MachineFiles::write(group + "/tasks", "");
  }

  void remove_directory(std::string_view path) override {
    const std::string group(path);
    give_cpus("/sys/fs/resctrl", *parse_cpu_list(text(group + "/cpus_list").value_or("")));
    for (const char* file : {"/schemata", "/cpus_list", "/tasks"}) std::filesystem::remove(at(group + file));
    MachineFiles::remove_directory(path);
  }

  void write(std::string_view path, std::string_view value) override {
    const std::filesystem::path file(path);
    if (file.filename() == "schemata") {
      const std::string problem = problem_of(value);
      MachineFiles::write("/sys/fs/resctrl/info/last_cmd_status", problem.empty() ? "ok\n" : problem + "\n");
      if (!problem.empty()) fail("cannot write {}: Invalid argument", path);
      merge(file.string(), parse_schemata(value).at(0));
    } else if (file.filename() == "cpus_list") {
      const Cpus cpus = *parse_cpu_list(value);
      give_cpus(file.parent_path().string(), cpus);
    } else {
      MachineFiles::write(path, value);
    }
  }

  std::string shares(const std::string& group, const std::string& resource) const {
    for (const SchemataLine& line : parse_schemata(text("/sys/fs/resctrl/" + group + "/schemata").value_or("")))
      if (line.resource == resource) return schemata_text(line);
    return "no " + resource;
  }
  std::string cpus(const std::string& group) const {
    return text("/sys/fs/resctrl" + (group.empty() ? "" : "/" + group) + "/cpus_list").value_or("no group");
  }

 private:
  // Judges one line as rdtgroup_schemata_write() and its callees do.
  std::string problem_of(std::string_view value) const {
    if (!value.ends_with('\n')) return "no line end";
    const auto lines = parse_schemata(value);
    if (lines.size() != 1) return "missing ':' or '='";
    const SchemataLine& line = lines[0];
    if (line.resource == refused_resource) return "unknown or unsupported resource name '" + line.resource + "'";
    const std::string info = "/sys/fs/resctrl/info/" + line.resource + "/";
    if (!exists(info)) return "unknown or unsupported resource name '" + line.resource + "'";
    for (const SchemataLine::Share& share : line.shares) {
      if (line.resource == "MB") {
        const auto percent = parse_whole(share.value);
        if (!percent || *percent < number(info + "min_bandwidth").value_or(0) || *percent > 100)
          return "MB value out of range";
        continue;
      }
      const auto mask = parse_hex(share.value);
      const auto all = *parse_hex(*text(info + "cbm_mask"));
      if (!mask || *mask == 0 || (*mask & ~all) != 0) return "mask out of range";
      const std::uint64_t low = *mask >> std::countr_zero(*mask);
      if ((low & (low + 1)) != 0) return "the bitmask " + share.value + " has non-consecutive 1-bits";
      if (static_cast<std::uint64_t>(std::popcount(*mask)) < number(info + "min_cbm_bits").value_or(1))
        return "need at least " + *text(info + "min_cbm_bits") + " bits in the mask";
    }
    return "";
  }

  // A domain that a line does not name stays.
  void merge(const std::string& file, const SchemataLine& line) {
    std::string merged;
    for (const SchemataLine& old : parse_schemata(text(file).value_or("")))
      merged += schemata_text(old.resource == line.resource ? line : old) + "\n";
    MachineFiles::write(file, merged);
  }

  void give_cpus(const std::string& group, const Cpus& cpus) {
    std::vector<std::string> groups{"/sys/fs/resctrl"};
    for (const std::string& name : list("/sys/fs/resctrl"))
      if (exists("/sys/fs/resctrl/" + name + "/cpus_list")) groups.push_back("/sys/fs/resctrl/" + name);
    for (const std::string& other : groups) {
      Cpus own = *parse_cpu_list(text(other + "/cpus_list").value_or(""));
      std::erase_if(own, [&](int cpu) { return std::binary_search(cpus.begin(), cpus.end(), cpu); });
      if (other == group) own.insert(own.end(), cpus.begin(), cpus.end());
      std::sort(own.begin(), own.end());
      MachineFiles::write(other + "/cpus_list", list_of(own) + "\n");
    }
  }
};

class Partitions : public testing::Test {
 protected:
  void machine(const std::vector<std::vector<int>>& nodes, const std::string& schemata) {
    tree_.cpus(nodes);
    std::size_t cpus = 0;
    for (const auto& node : nodes) cpus += node.size();
    tree_.file("/proc/filesystems", "nodev\tresctrl\n");
    tree_.file("/proc/self/mounts", "proc /proc proc rw 0 0\nresctrl /sys/fs/resctrl resctrl rw,nosuid 0 0\n");
    tree_.file("/sys/fs/resctrl/schemata", schemata);
    tree_.file("/sys/fs/resctrl/cpus_list", fmt::format("0-{}\n", cpus - 1));
    tree_.file("/sys/fs/resctrl/info/last_cmd_status", "ok\n");
    tree_.file("/sys/fs/resctrl/mon_data/mon_L3_00/llc_occupancy", "5\n");
    std::filesystem::create_directories(tree_.path() / "run");
  }
  void cache(const std::string& name, const std::string& mask, int least, int groups) {
    tree_.file("/sys/fs/resctrl/info/" + name + "/cbm_mask", mask + "\n");
    tree_.file("/sys/fs/resctrl/info/" + name + "/min_cbm_bits", fmt::format("{}\n", least));
    tree_.file("/sys/fs/resctrl/info/" + name + "/num_closids", fmt::format("{}\n", groups));
  }
  void bandwidth(int step, int least, int groups) {
    tree_.file("/sys/fs/resctrl/info/MB/bandwidth_gran", fmt::format("{}\n", step));
    tree_.file("/sys/fs/resctrl/info/MB/min_bandwidth", fmt::format("{}\n", least));
    tree_.file("/sys/fs/resctrl/info/MB/num_closids", fmt::format("{}\n", groups));
  }
  void intel() {
    machine({test::cpus_from(0, 16)}, "    MB:0=100\n    L3:0=7fff\n");
    cache("L3", "7fff", 1, 15);
    bandwidth(10, 10, 15);
  }
  FakeResctrl files() const { return FakeResctrl(tree_.path()); }
  std::string error_of(const PartitionRequest& request) const {
    try {
      plan_partition(files(), request);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::string refusal(FakeResctrl& files, const Partition& partition) const {
    try {
      apply_partition(files, partition);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  test::MachineTree tree_;
};

TEST_F(Partitions, IntelWithCacheAndBandwidth) {
  intel();
  FakeResctrl resctrl = files();
  const auto before = test::snapshot(tree_.path());
  const Partition partition = plan_partition(resctrl, {});
  EXPECT_EQ(partition.resources, "L3 of 15 ways, MB in steps of 10%");
  EXPECT_TRUE(partition.obstacles.empty());
  const std::string text = partition_text(partition);
  for (const char* line : {"superoffload_feed   CPUs 0     L3:0=7fe0\n", "superoffload_adamw  CPUs 1-15  L3:0=1f\n",
                           "  mkdir /sys/fs/resctrl/superoffload_feed\n",
                           "  echo 'L3:0=7fe0' > /sys/fs/resctrl/superoffload_feed/schemata\n",
                           "  echo 1-15 > /sys/fs/resctrl/superoffload_adamw/cpus_list\n", "note: MB stays whole"})
    EXPECT_NE(text.find(line), std::string::npos) << line << " is not in\n" << text;
  EXPECT_EQ(test::snapshot(tree_.path()), before) << "printing changes nothing";

  apply_partition(resctrl, partition);
  EXPECT_EQ(resctrl.shares("superoffload_feed", "L3"), "L3:0=7fe0");
  EXPECT_EQ(resctrl.shares("superoffload_adamw", "L3"), "L3:0=1f");
  EXPECT_EQ(resctrl.shares("superoffload_adamw", "MB"), "MB:0=100");
  EXPECT_EQ(resctrl.cpus("superoffload_feed"), "0");
  EXPECT_EQ(resctrl.cpus("superoffload_adamw"), "1-15");
  EXPECT_EQ(resctrl.cpus(""), "");
  EXPECT_NE(refusal(resctrl, plan_partition(resctrl, {})).find("superoffload_adamw is there already"),
            std::string::npos);

  EXPECT_NE(undo_partition(resctrl).find("removed superoffload_feed and superoffload_adamw"), std::string::npos);
  EXPECT_EQ(resctrl.cpus(""), "0-15");
  EXPECT_EQ(test::snapshot(tree_.path()), before);
  EXPECT_THROW(undo_partition(resctrl), Error) << "there is nothing to take back";
}

TEST_F(Partitions, ALimitOfBandwidth) {
  intel();
  FakeResctrl resctrl = files();
  const Partition partition = plan_partition(resctrl, {.adamw_bandwidth = 45});
  EXPECT_EQ(partition.groups[0].schemata, (std::vector<std::string>{"L3:0=7fe0", "MB:0=100"}));
  EXPECT_EQ(partition.groups[1].schemata, (std::vector<std::string>{"L3:0=1f", "MB:0=50"}));
  EXPECT_NE(partition_text(partition).find("45% becomes 50%"), std::string::npos);
  apply_partition(resctrl, partition);
  EXPECT_EQ(resctrl.shares("superoffload_adamw", "MB"), "MB:0=50");
  EXPECT_EQ(plan_partition(resctrl, {.adamw_bandwidth = 1}).groups[1].schemata[1], "MB:0=10");
}

TEST_F(Partitions, CodeAndDataApart) {
  machine({test::cpus_from(0, 8)}, "L3DATA:0=fff\nL3CODE:0=fff\n");
  cache("L3DATA", "fff", 2, 8);
  cache("L3CODE", "fff", 2, 8);
  FakeResctrl resctrl = files();
  const Partition partition = plan_partition(resctrl, {});
  EXPECT_EQ(partition.groups[0].schemata, (std::vector<std::string>{"L3DATA:0=ff0", "L3CODE:0=ff0"}));
  EXPECT_EQ(partition.groups[1].schemata, (std::vector<std::string>{"L3DATA:0=f", "L3CODE:0=f"}));
  apply_partition(resctrl, partition);
  EXPECT_EQ(resctrl.shares("superoffload_adamw", "L3CODE"), "L3CODE:0=f");
}

// Grace: 72 cores, one cache, which the kernel may number as it likes.
TEST_F(Partitions, MpamWithCacheAlone) {
  machine({test::cpus_from(0, 72)}, "L3:1=fff\n");
  cache("L3", "fff", 1, 32);
  for (int cpu = 0; cpu < 72; ++cpu)
    tree_.file(fmt::format("/sys/devices/system/cpu/cpu{}/cache/index3/id", cpu), "1\n");
  FakeResctrl resctrl = files();
  const Partition partition = plan_partition(resctrl, {.feeding_cores = 7});
  EXPECT_EQ(partition.groups[0].schemata, std::vector<std::string>{"L3:1=ff0"});
  EXPECT_EQ(partition.groups[1].schemata, std::vector<std::string>{"L3:1=f"});
  EXPECT_EQ(list_of(partition.groups[0].cpus), "0-6");
  EXPECT_EQ(list_of(partition.groups[1].cpus), "7-71");
  EXPECT_NE(error_of({.adamw_bandwidth = 20}).find("divides no memory bandwidth"), std::string::npos);
  apply_partition(resctrl, partition);
  EXPECT_EQ(resctrl.shares("superoffload_feed", "L3"), "L3:1=ff0");
}

TEST_F(Partitions, MpamWithBandwidthAlone) {
  machine({test::cpus_from(0, 72)}, "MB:1=100\n");
  bandwidth(1, 1, 32);
  FakeResctrl resctrl = files();
  const Partition nothing = plan_partition(resctrl, {});
  EXPECT_NE(refusal(resctrl, nothing).find("nothing to be divided without --adamw_bandwidth"), std::string::npos);
  const Partition partition = plan_partition(resctrl, {.adamw_bandwidth = 20});
  EXPECT_EQ(partition.groups[1].schemata, std::vector<std::string>{"MB:1=20"});
  apply_partition(resctrl, partition);
  EXPECT_EQ(resctrl.shares("superoffload_adamw", "MB"), "MB:1=20");
}

// Two sockets, one GPU: the first core of all feeds it, and the other socket's cache stays AdamW's.
TEST_F(Partitions, CachesThatFeedNoGpuStayWhole) {
  machine({test::cpus_from(0, 8), test::cpus_from(8, 8)}, "L3:0=fff;1=fff\nMB:0=100;1=100\n");
  cache("L3", "fff", 1, 16);
  bandwidth(10, 10, 16);
  const Partition one = plan_partition(files(), {.adamw_bandwidth = 50});
  EXPECT_EQ(one.groups[0].schemata[0], "L3:0=ff0;1=fff");
  EXPECT_EQ(one.groups[1].schemata, (std::vector<std::string>{"L3:0=f;1=fff", "MB:0=50;1=100"}));
  const Partition two = plan_partition(files(), {.gpus = 2});
  EXPECT_EQ(list_of(two.groups[0].cpus), "0,8");
  EXPECT_EQ(list_of(two.groups[1].cpus), "1-7,9-15");
  EXPECT_EQ(two.groups[1].schemata[0], "L3:0=f;1=f");
}

TEST_F(Partitions, WhatTheKernelRefusesIsTakenBack) {
  intel();
  const auto before = test::snapshot(tree_.path());
  FakeResctrl resctrl = files();
  resctrl.refused_resource = "MB";
  EXPECT_EQ(refusal(resctrl, plan_partition(resctrl, {.adamw_bandwidth = 50})),
            "the kernel refuses MB:0=100 for schemata of superoffload_feed: unknown or unsupported resource name 'MB'; "
            "nothing is set up");
  auto after = test::snapshot(tree_.path());
  after["sys/fs/resctrl/info/last_cmd_status"] = "ok\n";
  EXPECT_EQ(after, before);
  resctrl.refused_resource.clear();
  Partition wrong = plan_partition(resctrl, {});
  wrong.groups[1].schemata[0] = "L3:0=505";
  EXPECT_NE(refusal(resctrl, wrong).find("non-consecutive 1-bits"), std::string::npos);
  after = test::snapshot(tree_.path());
  after["sys/fs/resctrl/info/last_cmd_status"] = "ok\n";
  EXPECT_EQ(after, before) << "the group that was whole is gone too";
}

TEST_F(Partitions, OtherGroupsAreInTheWay) {
  intel();
  FakeResctrl resctrl = files();
  resctrl.make_directory("/sys/fs/resctrl/database");
  EXPECT_TRUE(plan_partition(resctrl, {}).obstacles.empty()) << "a group without CPUs";
  resctrl.write("/sys/fs/resctrl/database/cpus_list", "4-5\n");
  EXPECT_EQ(
      refusal(resctrl, plan_partition(resctrl, {})),
      "CPUs 4-5 are in /sys/fs/resctrl/database, another program's group: rmdir /sys/fs/resctrl/database gives them "
      "back");
  resctrl.remove_directory("/sys/fs/resctrl/database");
  tree_.file("/sys/fs/resctrl/info/L3/num_closids", "2\n");
  EXPECT_NE(refusal(resctrl, plan_partition(resctrl, {})).find("the hardware has 2 groups"), std::string::npos);
}

TEST_F(Partitions, RefusalsNameTheWayOut) {
  intel();
  FakeResctrl resctrl = files();
  const Partition partition = plan_partition(resctrl, {});
  resctrl.root_rights = false;
  EXPECT_NE(refusal(resctrl, partition).find("needs root rights: run it with sudo"), std::string::npos);
  EXPECT_THROW(undo_partition(resctrl), Error);
  resctrl.root_rights = true;
  tree_.file(std::string(partition_record), R"({"version":1,"groups":["../../../etc"]})");
  EXPECT_NE(refusal(resctrl, partition).find("records a set-up"), std::string::npos);
  for (const char* record : {R"({"version":1,"groups":["../../../etc"]})", "", "[]", "{\"groups\":3}", "{"}) {
    tree_.file(std::string(partition_record), record);
    EXPECT_THROW(undo_partition(resctrl), Error) << record;
  }
  tree_.file(std::string(partition_record), R"({"version":1,"groups":["superoffload_feed"]})");
  EXPECT_EQ(undo_partition(resctrl), "the groups were gone already; the record is removed");

  EXPECT_NE(error_of({.gpus = 5}).find("16 cores for 5 GPUs"), std::string::npos);
  EXPECT_NE(error_of({.feeding_cores = 16}).find("--feeding_cores"), std::string::npos);
  tree_.file("/sys/fs/resctrl/schemata", "MB:0=2048\nL3:0=7fff\n");
  EXPECT_NE(error_of({.adamw_bandwidth = 50}).find("not in percent here (MB:0=2048)"), std::string::npos);
  EXPECT_EQ(error_of({}), "");
  EXPECT_EQ(plan_partition(files(), {}).notes[0], "MB stays as it is for both: it is not in percent here (MB:0=2048)");
  tree_.file("/sys/fs/resctrl/schemata", "L2:0=f\n");
  EXPECT_NE(error_of({}).find("neither L3 nor MB"), std::string::npos);
  tree_.file("/proc/self/mounts", "proc /proc proc rw 0 0\n");
  EXPECT_NE(error_of({}).find("mount -t resctrl resctrl /sys/fs/resctrl"), std::string::npos);
  tree_.file("/proc/filesystems", "nodev\tproc\n");
  EXPECT_NE(error_of({}).find("no resctrl here"), std::string::npos);
}

TEST_F(Partitions, FewWays) {
  machine({test::cpus_from(0, 8)}, "L3:0=3\n");
  cache("L3", "3", 2, 8);
  const Partition partition = plan_partition(files(), {});
  EXPECT_NE(partition_text(partition).find("too few ways"), std::string::npos);
  ASSERT_EQ(partition.obstacles.size(), 1u);
  for (const char* mask : {"5", "ffffffffffffffff", "0", "", "xyz", "10000000000000000"}) {
    cache("L3", mask, 1, 8);
    try {
      partition_text(plan_partition(files(), {}));
    } catch (const Error&) {  // a mask that is none is as no cache
    }
  }
}

TEST_F(Partitions, Json) {
  intel();
  const auto j = nlohmann::json::parse(partition_json(plan_partition(files(), {})));
  EXPECT_EQ(j.at("groups").at(1),
            nlohmann::json::parse(R"({"name": "superoffload_adamw", "cpus": "1-15", "schemata": ["L3:0=1f"]})"));
  EXPECT_EQ(j.at("commands").size(), 6u);
  EXPECT_TRUE(j.at("obstacles").empty());
  EXPECT_EQ(j.at("notes").size(), 2u);
}

TEST(Schemata, OnlyLinesOfTheirForm) {
  const auto texts = [](std::string_view text) {
    std::vector<std::string> all;
    for (const SchemataLine& line : parse_schemata(text)) all.push_back(schemata_text(line));
    return all;
  };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(texts("    MB:0=100;1= 90\nL3:0=fffff;1=fffff\n"), Lines{"L3:0=fffff;1=fffff"});
  EXPECT_EQ(texts("  L3CODE:0=ff\nL3DATA:0=ff;\n"), (Lines{"L3CODE:0=ff", "L3DATA:0=ff"}));
  for (const char* bad : {"", ":", "L3", "L3:", "L3:0", "L3:0=", "L3:=f", "L3:x=f", "L3:0=g", "L3:0=f;;1=f", "l3:0=f",
                          "L3:4294967296=f", "L3:0=f\x01"})
    EXPECT_TRUE(parse_schemata(bad).empty()) << bad;
}

}  // namespace
}  // namespace so
