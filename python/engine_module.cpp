// superoffload._engine: TensorOptimizer for Python. Tensors cross as addresses, so it needs no torch, and any version
// of it will do. superoffload/optimizer.py is the only user; it checks what people give.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <new>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/host_memory.h"
#include "offload/verdict.h"
#include "optim/engine_ops.h"
#include "options/deepspeed_optimizer.h"
#include "ranks/communicator.h"
#include "train/frameworks/tensor_optimizer.h"

namespace nb = nanobind;

namespace so {
namespace {

// (name, address, whether it is bf16, elements, unit, group)
using TensorTuple = std::tuple<std::string, std::uintptr_t, bool, std::int64_t, int, int>;
// (lr, beta1, beta2, eps, weight_decay)
using GroupTuple = std::tuple<double, double, double, double, double>;
// (sum of squares, number of elements that are Inf or NaN)
using StatsTuple = std::tuple<double, std::uint64_t>;

DType tensor_dtype(bool is_bf16) { return is_bf16 ? DType::bf16 : DType::f32; }

struct Tensors {
  std::vector<OwnedTensor> owned;
  std::vector<int> groups;
};

// The format of AdamW's moments that have so many bits.
DType moments_dtype(int bits) {
  SO_CHECK(bits == 32 || bits == 16 || bits == 8, "moments in {} bits", bits);
  return bits == 32 ? DType::f32 : bits == 16 ? DType::bf16 : DType::u8;
}

Tensors tensors_of(const std::vector<TensorTuple>& tuples) {
  Tensors tensors;
  for (const auto& [name, address, is_bf16, elements, unit, group] : tuples) {
    tensors.owned.push_back({name, reinterpret_cast<void*>(address), tensor_dtype(is_bf16), elements, unit});
    tensors.groups.push_back(group);
  }
  return tensors;
}

// All keys must be there, but no others are looked at. gpu: its number, -1 for the CPU.
TensorOptimizerSettings settings_of(const nb::dict& given) {
  TensorOptimizerSettings settings;
  if (const int gpu = nb::cast<int>(given["gpu"]); gpu >= 0) {
    settings.backend = &backend_of_gpu(gpu);
    settings.device_index = gpu;
  }
  settings.moments = moments_dtype(nb::cast<int>(given["moment_bits"]));
  settings.max_grad_norm = nb::cast<double>(given["max_grad_norm"]);
  settings.schedule = nb::cast<bool>(given["synchronous"]) ? Schedule::synchronous : Schedule::overlapped;
  settings.awaits_updates = nb::cast<bool>(given["awaits_updates"]);
  settings.update_over_link = nb::cast<bool>(given["update_over_link"]);
  settings.threads = nb::cast<int>(given["threads"]);
  settings.cpu_part = nb::cast<int>(given["cpu_part"]);
  settings.cpu_parts = nb::cast<int>(given["cpu_parts"]);
  settings.device_units = nb::cast<int>(given["device_units"]);
  settings.bucket_elements = nb::cast<std::int64_t>(given["bucket_elements"]);
  settings.spare_state = nb::cast<double>(given["spare_state"]);
  return settings;
}

void make(TensorOptimizer* self, const std::vector<TensorTuple>& tuples, const nb::dict& given) {
  Tensors tensors = tensors_of(tuples);
  TensorOptimizerSettings settings = settings_of(given);
  const nb::gil_scoped_release released;
  new (self) TensorOptimizer(std::move(tensors.owned), std::move(tensors.groups), std::move(settings));
}

std::vector<GroupUpdate> updates_of(const std::vector<GroupTuple>& groups) {
  std::vector<GroupUpdate> updates;
  for (const auto& [lr, beta1, beta2, epsilon, weight_decay] : groups)
    updates.push_back({{beta1, beta2, epsilon}, lr, weight_decay});
  return updates;
}

std::vector<GradStats> stats_of(const std::vector<StatsTuple>& tuples) {
  std::vector<GradStats> stats;
  for (const auto& [sum_of_squares, non_finite] : tuples) stats.push_back({sum_of_squares, non_finite});
  return stats;
}

std::vector<StatsTuple> gradient_statistics(TensorOptimizer& self, const std::vector<GroupTuple>& groups) {
  const std::vector<GroupUpdate> updates = updates_of(groups);
  const nb::gil_scoped_release released;
  std::vector<StatsTuple> tuples;
  for (const GradStats& s : self.gradient_statistics(updates)) tuples.emplace_back(s.sum_of_squares, s.non_finite);
  return tuples;
}

std::span<float> span_at(const TensorOptimizer& optimizer, std::uintptr_t address, int tensor) {
  return {reinterpret_cast<float*>(address), static_cast<std::size_t>(optimizer.elements(tensor))};
}

nb::dict counters_of(const TensorOptimizer& optimizer) {
  const EngineCounters counters = optimizer.counters();
  nb::dict all;
  all["steps"] = counters.steps;
  all["clipped_steps"] = counters.clipped_steps;
  all["skipped_steps"] = counters.skipped_steps;
  all["reopened_steps"] = optimizer.reopened_steps();
  all["updated_by_device"] = counters.device_updates;
  all["updated_over_link"] = counters.host.over_link;
  all["updated_before_norm"] = counters.host.speculated;
  all["weights_before_norm"] = counters.host.previewed;
  all["updated_after_norm"] = counters.host.updated_in_place + counters.host.updated_weights_first;
  nb::dict host, device;
  for (std::size_t i = 0; i < host_times; ++i)
    host[std::string(name_of(static_cast<HostTime>(i))).c_str()] = counters.host.seconds[i];
  for (std::size_t i = 0; i < wait_reasons; ++i)
    device[std::string(name_of(static_cast<WaitReason>(i))).c_str()] = counters.device_waits[i];
  all["host_seconds"] = host;
  all["device_wait_seconds"] = device;
  return all;
}

}  // namespace
}  // namespace so

NB_MODULE(_engine, module) {
  nb::set_leak_warnings(false);  // an optimizer may live as long as the interpreter
  using so::TensorOptimizer;
  const nb::module_ errors = nb::module_::import_("superoffload.errors");
  nb::exception<so::Error>(module, "UserError", errors.attr("UserError"));
  nb::exception<so::Bug>(module, "Bug", errors.attr("Bug"));
  using release = nb::call_guard<nb::gil_scoped_release>;
  module.def("from_deepspeed", [](const std::string& text, const std::string& name, int cpus) {
    return so::deepspeed_optimizer(text, name, cpus);
  });
  // Returns the bytes on the device and of the host that a TensorOptimizer of these would take, and a table of them.
  module.def("memory_of", [](const std::vector<so::TensorTuple>& tensors, const nb::dict& settings) {
    const so::TensorOptimizerMemory memory = so::memory_of(so::tensors_of(tensors).owned, so::settings_of(settings));
    return std::make_tuple(memory.device, memory.host, memory.table);
  });
  // Returns the bytes of host memory that this process may still take, and what limits them.
  module.def("available_host_memory", [] {
    const so::HostMemory memory = so::available_host_memory();
    return std::make_tuple(memory.available, memory.limited_by);
  });
  // The norm of gradients with these statistics, as a step has it; NaN if one is not finite.
  module.def("norm_of", [](const std::vector<so::StatsTuple>& stats) {
    return so::make_verdict(so::stats_of(stats), *so::make_single_communicator(), 0).norm;
  });
  nb::class_<TensorOptimizer>(module, "TensorOptimizer")
      .def("__init__", &so::make, nb::arg("tensors"), nb::arg("settings"))
      // Never destroys it: in a forked process its threads are missing.
      .def("leak", [](const nb::handle self) { self.inc_ref(); })
      // From here on the caller's work is on this cudaStream_t.
      .def(
          "use_stream", [](TensorOptimizer& self, std::uintptr_t handle) { self.use(reinterpret_cast<void*>(handle)); },
          release())
      .def(
          "add_gradient",
          [](TensorOptimizer& self, int tensor, std::uintptr_t address, bool is_bf16) {
            return self.add_gradient(tensor, reinterpret_cast<const void*>(address), so::tensor_dtype(is_bf16));
          },
          release())
      .def("forecast",
           [](TensorOptimizer& self, const std::vector<so::GroupTuple>& groups) {
             const std::vector<so::GroupUpdate> updates = so::updates_of(groups);
             const nb::gil_scoped_release released;
             self.forecast(updates);
           })
      .def("gradient_norm",
           [](TensorOptimizer& self, const std::vector<so::GroupTuple>& groups) {
             const std::vector<so::GroupUpdate> updates = so::updates_of(groups);
             const nb::gil_scoped_release released;
             return self.gradient_norm(updates);
           })
      // By tensor, of the gradients since the last step, as if they were all.
      .def("gradient_statistics", &so::gradient_statistics)
      // of_all: statistics of all processes' gradients, which decide; empty: those of this one do. Returns whether the
      // step stands, the gradient norm, the factor of clipping, and the tensor, or index of these, that is not finite
      // (-1: none).
      .def(
          "step",
          [](TensorOptimizer& self, const std::vector<so::GroupTuple>& groups,
             const std::vector<so::StatsTuple>& of_all) {
            const std::vector<so::GroupUpdate> updates = so::updates_of(groups);
            const std::vector<so::GradStats> stats = so::stats_of(of_all);
            so::Verdict verdict;
            {
              const nb::gil_scoped_release released;
              verdict = self.step(updates, stats);
            }
            return std::make_tuple(verdict.finite, verdict.norm, verdict.clip, verdict.non_finite_parameter);
          },
          nb::arg("groups"), nb::arg("of_all") = std::vector<so::StatsTuple>())
      .def("set_max_grad_norm", &TensorOptimizer::set_max_grad_norm)
      .def("wait", &TensorOptimizer::wait, release())
      .def("require", &TensorOptimizer::require, release())
      .def("pending", [](const TensorOptimizer& self) { return self.pending(); })
      .def("is_pending", [](const TensorOptimizer& self, int tensor) { return self.pending(tensor); })
      .def("upload", &TensorOptimizer::upload, release())
      .def("set_late", &TensorOptimizer::set_late, release())
      // rows: address of int64; gradients, weights: of [rows, width], in the dtypes that has_bf16_gradients() and
      // has_bf16_weights() say.
      .def(
          "preview_rows",
          [](TensorOptimizer& self, int tensor, std::int64_t width, std::uintptr_t rows, std::size_t count,
             std::uintptr_t gradients, std::uintptr_t weights) {
            return self.preview_rows(tensor, width, {reinterpret_cast<const std::int64_t*>(rows), count},
                                     reinterpret_cast<const void*>(gradients), reinterpret_cast<void*>(weights));
          },
          release())
      // The address of a tensor's last gradient, on the device.
      .def("last_gradient",
           [](TensorOptimizer& self, int tensor) {
             return reinterpret_cast<std::uintptr_t>(self.last_gradient(tensor).data());
           })
      .def("has_bf16_weights", [](const TensorOptimizer& self) { return self.weight_dtype() == so::DType::bf16; })
      .def("drop_gradients", &TensorOptimizer::drop_gradients, release())
      .def("has_gradients", &TensorOptimizer::has_gradients)
      .def("has_gradient", &TensorOptimizer::has_gradient)
      .def("has_bf16_gradients", [](const TensorOptimizer& self) { return self.gradient_dtype() == so::DType::bf16; })
      .def(
          "read_gradient",
          [](TensorOptimizer& self, int tensor, std::uintptr_t address) {
            self.read_gradient(tensor, reinterpret_cast<void*>(address));
          },
          release())
      .def("updates", &TensorOptimizer::updates)
      .def("set_updates", &TensorOptimizer::set_updates, release())
      // array: 0 master weights, 1 and 2 the moments; address: of fp32.
      .def(
          "read",
          [](TensorOptimizer& self, int array, int tensor, std::uintptr_t address) {
            self.read(so::state_arrays.at(static_cast<std::size_t>(array)), tensor, so::span_at(self, address, tensor));
          },
          release())
      .def(
          "write",
          [](TensorOptimizer& self, int array, int tensor, std::uintptr_t address) {
            self.write(so::state_arrays.at(static_cast<std::size_t>(array)), tensor,
                       so::span_at(self, address, tensor));
          },
          release())
      .def("counters", &so::counters_of);
}
