#include "train/runtime.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "model/config.h"

namespace so {
namespace {

std::vector<int> first_cpus(int threads) {
  std::vector<int> cpus = usable_cpus();
  if (threads > 0) cpus.resize(std::min(cpus.size(), static_cast<std::size_t>(threads)));
  return cpus;
}

}  // namespace

Runtime::Runtime(DeviceChoice choice, int threads)
    : Runtime(choice == DeviceChoice::cuda || (choice == DeviceChoice::automatic && find_cuda().usable), threads) {}

// On the CPU neither pool is pinned or spins: they share the CPUs, and whoever has work should find a free one.
Runtime::Runtime(bool on_gpu, int threads)
    : host_pool_("host", on_gpu ? host_worker_cpus(usable_cores(), threads) : first_cpus(threads), on_gpu,
                 on_gpu ? ThreadPool::long_spin : ThreadPool::no_spin) {
  if (on_gpu) {
    device_ = make_cuda_device(0);
  } else {
    compute_pool_ = std::make_unique<ThreadPool>("compute", first_cpus(threads), false);
    device_ = make_cpu_device(*compute_pool_);
  }
  ops_ = make_ops(*device_);
}

DType resolve_dtype(Precision precision, const std::string& config_json, const std::string& origin) {
  switch (precision) {
    case Precision::bf16:
      return DType::bf16;
    case Precision::fp32:
      return DType::f32;
    case Precision::automatic:
      break;
  }
  const ConfigReader config(config_json, origin);
  // What is published quantised is widened to bf16, and often says no dtype.
  const char* const usual = config.has("quantization_config") ? "bfloat16" : "float32";
  const std::string stored = config.text("dtype", config.text("torch_dtype", usual));
  // fp16 weights train in bf16: same size, and no loss scaling is needed.
  if (stored == "float16")
    log_info(
        "{}: the weights are stored in float16; computed, and written, is in bfloat16, which keeps 3 bits fewer of "
        "each (--dtype fp32 keeps them all)",
        printable_path(origin));
  return stored == "bfloat16" || stored == "float16" ? DType::bf16 : DType::f32;
}

}  // namespace so
