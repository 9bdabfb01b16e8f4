// Findings about GPUs and software, each provoked once; the driver's through a library that answers as NVIDIA's does.
#include "doctor/gpu_findings.h"

#include <dlfcn.h>

#include "doctor/examination.h"
#include "doctor/fake_nvml.h"
#include "doctor/machine_tree.h"

namespace so {
namespace {

using test::finding;

class GpuFindings : public testing::Test {
 protected:
  GpuFindings() : library_(dlopen(SO_FAKE_NVML, RTLD_NOW | RTLD_LOCAL)) {
    const auto table =
        library_ != nullptr ? reinterpret_cast<test::FakeNvml* (*)()>(dlsym(library_, "fake_nvml")) : nullptr;
    if (table == nullptr) throw std::runtime_error("no " SO_FAKE_NVML);
    nvml_ = table();
    *nvml_ = test::FakeNvml{};
    tree_.cpus({test::cpus_from(0, 16)});
    tree_.gpu("0000:4e:00.0", "0-15");
    software_.mpi = true;
    software_.mpi_launcher = "/usr/bin/mpirun";
  }
  ~GpuFindings() override { dlclose(library_); }

  Findings look() const {
    const Findings findings = examine(MachineFiles(tree_.path()), ask_gpu_driver(SO_FAKE_NVML), software_);
    EXPECT_EQ(nvml_->open, 0) << "NVML is left open";
    return findings;
  }
  void expect(const std::string& check, FindingVerdict verdict, const std::string& found, const std::string& cost,
              const std::string& mend) const {
    const Finding f = finding(look(), check);
    EXPECT_EQ(f.verdict, verdict) << f.found;
    EXPECT_NE(f.found.find(found), std::string::npos) << f.found;
    EXPECT_NE(f.cost.find(cost), std::string::npos) << f.cost;
    EXPECT_NE(f.mend.find(mend), std::string::npos) << f.mend;
  }
  test::FakeGpu& gpu(std::size_t i = 0) const { return nvml_->gpus[i]; }

  void* library_;
  test::FakeNvml* nvml_ = nullptr;
  test::MachineTree tree_;
  Software software_;
};

TEST_F(GpuFindings, AGpuInOrder) {
  for (const char* check : {"gpu", "gpu_memory", "pcie_link", "gpu_clocks", "cores_near_gpu"})
    expect(check, FindingVerdict::ok, "", "", "");
  expect("gpu", FindingVerdict::ok, "1 x NVIDIA H200, driver 580.95.05 (CUDA 13.0)", "", "");
  expect("pcie_link", FindingVerdict::ok, "PCIe generation 5 x16 (63.0 GB/s each way)", "", "");
  expect("gpu_clocks", FindingVerdict::ok, "1980 of 1980 MHz", "", "");
  EXPECT_EQ(ask_gpu_driver(SO_FAKE_NVML).gpus.at(0).bus, "0000:4e:00.0");
}

// A superchip's memory is a node without CPUs, unless the driver keeps it to itself.
TEST_F(GpuFindings, WhoseMemoryItIs) {
  const auto found = [&] { return finding(look(), "gpu_memory").found; };
  EXPECT_EQ(found(), "150.8 GB");
  tree_.file("/proc/driver/nvidia/params", "EnableMSI: 1\nCoherentGPUMemoryMode: \"driver\"\nRmMsg: \"\"\n");
  EXPECT_EQ(found(), "150.8 GB") << "the mode is of no use to a GPU behind PCIe";
  gpu().chip_to_chip = 1;
  EXPECT_EQ(
      found(),
      "150.8 GB, which the driver alone manages (CDMM mode, NVreg_CoherentGPUMemoryMode=driver): no NUMA node has "
      "it, so host memory cannot fall into it");
  tree_.file("/proc/driver/nvidia/params", "CoherentGPUMemoryMode: \"\"\n");
  for (int node = 1; node < 9; ++node) tree_.memory_node(node, "", 0);
  expect("gpu_memory", FindingVerdict::ok, "manages (CDMM mode): no NUMA node has it", "", "");
  tree_.memory_node(1, "", 96);
  EXPECT_EQ(found(), "150.8 GB, which the kernel has as a NUMA node");
}

// Its driver has no answer to questions about memory.
TEST_F(GpuFindings, AGpuThatSharesTheCpusMemory) {
  gpu().name = "NVIDIA GB10";
  gpu().memory = 0;
  gpu().chip_to_chip = 1;
  expect("gpu_memory", FindingVerdict::unknown, "the driver does not say how much", "", "");
  software_.shares_memory = true;
  expect("gpu_memory", FindingVerdict::ok, "the CPU's: a run is planned in that one memory, less a margin", "", "");
}

TEST_F(GpuFindings, NoGpuIsNoFault) {
  tree_.remove("/sys/bus/pci");
  software_.no_cuda = "this build has no CUDA backend";
  const Findings findings = examine(MachineFiles(tree_.path()), ask_gpu_driver("no-such-library.so"), software_);
  EXPECT_FALSE(any_wrong(findings)) << findings_text(findings, 120);
  EXPECT_EQ(finding(findings, "gpu").verdict, FindingVerdict::unknown);
}

TEST_F(GpuFindings, NoDriver) {
  const Findings findings = examine(MachineFiles(tree_.path()), ask_gpu_driver("no-such-library.so"), software_);
  const Finding f = finding(findings, "gpu");
  EXPECT_EQ(f.verdict, FindingVerdict::wrong);
  EXPECT_NE(f.found.find("1 of NVIDIA's on the PCI bus"), std::string::npos) << f.found;
  EXPECT_NE(f.found.find("no-such-library.so"), std::string::npos) << f.found;
  EXPECT_EQ(finding(findings, "pcie_link").found, "PCIe generation 5 x16 (63.0 GB/s each way)") << "by sysfs";
  // A library that is another's.
  const GpuDriver other = ask_gpu_driver("libm.so.6");
  EXPECT_EQ(other.reason, "libm.so.6 has no nvmlInit_v2");

  nvml_->init_error = 18;
  expect("gpu", FindingVerdict::wrong, "Driver/library version mismatch", "no GPU can be used",
         "install NVIDIA's driver");
}

TEST_F(GpuFindings, AProgramWithoutCuda) {
  software_.no_cuda = "this build has no CUDA backend; build again";
  expect("gpu", FindingVerdict::wrong, "cannot use them: this build has no CUDA backend", "on the CPU", "");
}

TEST_F(GpuFindings, LinksBelowWhatTheyCan) {
  gpu().lanes = 8;
  expect("pcie_link", FindingVerdict::costs,
         "PCIe generation 5 x8 (31.5 GB/s each way), where generation 5 x16 (63.0 GB/s each way) is possible",
         "at 50% of the speed; 55.2 GB/s to the host on a good one (configs/hardware/h200.json)", "seat the card");
  gpu().lanes = 16;
  gpu().generation = 3;
  expect("pcie_link", FindingVerdict::costs, "PCIe generation 3 x16", "at 25% of the speed", "");
  gpu().performance_state = 8;
  gpu().generation = 1;
  expect("pcie_link", FindingVerdict::ok, "PCIe generation 1 x16 (4.0 GB/s each way), generation 5 x16", "", "");
  gpu().lanes = 4;  // no GPU gives up lanes because it is idle
  expect("pcie_link", FindingVerdict::costs, "PCIe generation 1 x4", "at 25% of the speed", "");
  gpu().generation = 99;
  expect("pcie_link", FindingVerdict::unknown, "", "", "");
  gpu().chip_to_chip = 1;
  expect("pcie_link", FindingVerdict::ok, "NVLink-C2C", "", "");
}

TEST_F(GpuFindings, LinksBySysfs) {
  tree_.gpu("0000:4e:00.0", "0-15", "16.0 GT/s PCIe", 8);
  const Findings findings = examine(MachineFiles(tree_.path()), ask_gpu_driver("no-such-library.so"), software_);
  EXPECT_EQ(finding(findings, "pcie_link").verdict, FindingVerdict::costs);
  tree_.file("/sys/bus/pci/devices/0000:4e:00.0/current_link_width", "255\n");
  EXPECT_EQ(finding(examine(MachineFiles(tree_.path()), {}, software_), "pcie_link").verdict, FindingVerdict::unknown);
}

TEST_F(GpuFindings, Clocks) {
  gpu().clock = 990;
  gpu().clock_reasons = clock_reason::hardware_thermal | clock_reason::hardware_slowdown;
  expect("gpu_clocks", FindingVerdict::wrong, "990 of 1980 MHz: it is too hot", "at most 50% as fast", "cooling");
  gpu().clock_reasons = clock_reason::power_brake;
  expect("gpu_clocks", FindingVerdict::wrong, "the power supply brakes it", "", "power supply");
  gpu().clock_reasons = clock_reason::application_setting;
  expect("gpu_clocks", FindingVerdict::costs, "somebody has set its clocks", "50%", "nvidia-smi -i 0 -rac");
  gpu().clock_reasons = clock_reason::power_cap;
  expect("gpu_clocks", FindingVerdict::ok, "kept by its own power limit", "", "");
  gpu().power_limit = 400000;
  expect("gpu_clocks", FindingVerdict::costs, "power limited to 400 of 700 W", "50% as fast at this limit",
         "nvidia-smi -i 0 -pl 700");
  gpu().power_limit = 700000;
  gpu().clock_reasons = clock_reason::idle;
  expect("gpu_clocks", FindingVerdict::ok, "990 of 1980 MHz, idle", "", "");
  gpu().refuses_all = true;
  expect("gpu_clocks", FindingVerdict::unknown, "the driver does not say", "", "");
  expect("pcie_link", FindingVerdict::unknown, "", "", "");
}

TEST_F(GpuFindings, SeveralGpus) {
  nvml_->count = 4;
  expect("gpu", FindingVerdict::ok, "4 x NVIDIA H200", "", "");
  expect("gpu_topology", FindingVerdict::ok, "NVLink between 6 of 6 pairs (18 links up at GPU 0)", "", "");
  nvml_->nvlink = false;
  expect("gpu_topology", FindingVerdict::costs, "NVLink between 0 of 6 pairs", "395 GB/s (configs/hardware/h200.json)",
         "");
  expect("gpu_topology", FindingVerdict::costs, "0-1 PCIe of two sockets", "", "");
  nvml_->ancestor = 10;
  expect("gpu_topology", FindingVerdict::costs, "2-3 PCIe switches", "", "");
}

TEST_F(GpuFindings, Libraries) {
  software_.libraries = {{"cublaslt", "cuBLASLt", "13.1.0"},
                         {"cudnn", "cuDNN", "", "cannot open libcudnn.so.9"},
                         {"nccl", "NCCL", "", "cannot open libnccl.so.2"}};
  expect("cublaslt", FindingVerdict::ok, "13.1.0", "", "");
  expect("cudnn", FindingVerdict::costs, "not found: cannot open libcudnn.so.9", "the GPU cannot be used",
         "libcudnn9-dev-cuda-13");
  expect("nccl", FindingVerdict::ok, "not found; nothing on this machine needs it", "", "");
  nvml_->count = 2;
  expect("nccl", FindingVerdict::costs, "cannot open", "no collectives", "libnccl2");
}

TEST_F(GpuFindings, ARuntimeNewerThanTheDriver) {
  expect("cuda_runtime", FindingVerdict::ok, "this build has none", "", "");
  software_.cuda_runtime = 13010;
  expect("cuda_runtime", FindingVerdict::ok, "13.1, in this build", "", "");
  nvml_->cuda_version = 12080;
  expect("cuda_runtime", FindingVerdict::wrong, "13.1, in this build; the driver runs 12.8 and older", "no GPU",
         "update");
}

TEST_F(GpuFindings, MpiAndFolders) {
  software_.mpi_launcher.reset();
  expect("mpi", FindingVerdict::costs, "not in PATH", "--gpus N", "openmpi-bin");
  software_.mpi = false;
  expect("mpi", FindingVerdict::costs, "this build has none", "", "libopenmpi-dev");
  software_.folders = {{"cache_folder", "cache folder", "/home/u/.cache", 80'000'000, ""},
                       {"temporary_folder", "temporary folder", "/tmp", 5'000'000, "/tmp cannot be written to"}};
  expect("cache_folder", FindingVerdict::costs, "/home/u/.cache: 80.0 MB free", "this is room for 10 million",
         "cache --prune");
  expect("temporary_folder", FindingVerdict::wrong, "/tmp cannot be written to", "", "export TMPDIR=DIR");
}

// The machine that the test runs on: whatever it is, nothing is missing in what is said of it.
TEST(ThisMachine, IsLookedAt) {
  const Findings findings = examine(MachineFiles(), ask_gpu_driver(), software_of_this_machine());
  for (const char* check :
       {"cores", "cpu_quota", "governor", "memory_nodes", "memory", "huge_pages", "locked_memory", "memory_partitions",
        "gpu", "cuda_runtime", "cublaslt", "cudnn", "nccl", "mpi", "cache_folder", "temporary_folder"})
    EXPECT_FALSE(finding(findings, check).found.empty()) << check;
}

}  // namespace
}  // namespace so
