// AdamW for tensors that another framework owns: a model's parameters, given by address in a device's memory, whose
// gradients arrive one by one in any order. It brings OffloadEngine the order that the engine needs: which gradient of
// a step is a parameter's last one is forecast from the step before, so that the host can begin ahead of step(); where
// the forecast fails, what was done is undone, and no bit depends on it.
//
// Streams. The framework's work with the tensors is enqueued on a stream of its own, which use() names; what the calls
// below enqueue comes in the order of that stream. Without one, as on the CPU, the optimizer has its own, and calls
// return when that is done.
//
// One thread at a time calls.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "device/backend.h"
#include "device/device.h"
#include "offload/engine.h"
#include "offload/memory/optimizer_state.h"
#include "offload/schedule/parameter_layout.h"
#include "optim/engine_ops.h"
#include "ranks/communicator.h"

namespace so {

struct OwnedTensor {
  std::string name;  // for messages; distinct
  void* data = nullptr;
  DType dtype = DType::f32;  // or bf16
  std::int64_t elements = 0;
  int unit = 0;  // from 0 on, neither decreasing nor leaving one out
};

struct TensorOptimizerSettings {
  const Backend* backend = &cpu_backend();
  int device_index = 0;  // among the visible ones of its kind
  DType moments = DType::f32;
  double max_grad_norm = 0;  // 0: no clipping
  Schedule schedule = Schedule::overlapped;
  int threads = 0;  // that run AdamW; 0: one for each usable CPU
  // Which of `cpu_parts` equal parts of the usable CPUs they run on, for processes that share a host.
  int cpu_part = 0, cpu_parts = 1;
  std::int64_t bucket_elements = std::int64_t{1} << 22;
  // The first units whose optimizer state is in the device's memory, and is updated there after the verdict. Their
  // tensors begin at multiples of 16 bytes.
  int device_units = 0;
  // Whether the caller waits for all new weights when it has made a step, so that none comes under its next work.
  bool awaits_updates = true;
  // Whether the device updates some of the state that is in host memory, which is pinned then, over the link.
  bool update_over_link = false;
  double spare_state = 0.25;                       // of the optimizer state, room for updates that may be discarded
  std::unique_ptr<UpdatePolicy> policy = nullptr;  // null: the engine's own
};

// The settings that the parameters of a group have in common.
struct GroupUpdate {
  AdamWHyper adamw;
  double lr = 0, weight_decay = 0;
  bool operator==(const GroupUpdate&) const = default;
};

// Bytes that an optimizer takes, beside its libraries. On a device without memory of its own all are the host's.
struct TensorOptimizerMemory {
  std::size_t device = 0, host = 0;
  std::string table;  // by name, for people
};
// The most that making one and its steps take, without taking it.
TensorOptimizerMemory memory_of(const std::vector<OwnedTensor>& tensors, const TensorOptimizerSettings& settings);

class TensorOptimizer {
 public:
  // Reads the tensors' values, and the work that wrote them must have run: they become master weights, from which the
  // tensors' values then follow. `groups`: by tensor, the index of its group. The tensors' memory must stay where it
  // is, and outlive this.
  TensorOptimizer(std::vector<OwnedTensor> tensors, std::vector<int> groups, TensorOptimizerSettings settings);
  ~TensorOptimizer();

  Device& device() { return *device_; }
  // From now on the framework's work, and what is enqueued here, goes to `stream`, after all that was enqueued on the
  // stream before. `stream` must live until a use() of another one has returned, or this object is destroyed.
  void use(Stream& stream);
  // The same of a stream by the backend's handle (Device::wrap_stream()).
  void use(void* handle);
  void use_own() { use(*own_stream_); }
  Stream& stream() { return *stream_; }  // the one in use

  // Takes a gradient of a tensor, of its number of elements; the first of a step replaces, later ones add. It is read
  // in the order of the framework's stream; without one, it has been read on return. True: a forecast could be made
  // with the groups' settings; then forecast() may be called.
  bool add_gradient(int tensor, const void* gradient, DType dtype);
  // The step will probably be made with these. The host begins with the units whose gradients are complete by forecast.
  void forecast(std::span<const GroupUpdate> groups);
  // Waits for the gradients since the last step, as if they were all, and returns their norm, NaN if one is not finite;
  // `groups` as step() will have them. The step is still open. Throws Bug without any gradient.
  double gradient_norm(std::span<const GroupUpdate> groups);
  // The same, but returns the statistics behind it, by tensor; zero for those without a gradient.
  std::vector<GradStats> gradient_statistics(std::span<const GroupUpdate> groups);
  // Ends the step: waits for its gradients, takes the verdict and has it carried out. Tensors without a gradient stay
  // as they are, with their state. On return updates may run: who reads tensors calls require() or wait() before.
  // Throws Bug without any gradient. `of_all`: as OffloadEngine::finish_step() has it, for a model whose tensors are
  // spread over processes.
  Verdict step(std::span<const GroupUpdate> groups, std::span<const GradStats> of_all = {});
  // For the steps that follow, and the one under way.
  void set_max_grad_norm(double norm) { engine_->set_max_grad_norm(norm); }
  // Work that follows finds the value of the last step in the tensor, and in those of its unit. Waits for the host to
  // have computed it.
  void require(int tensor) { require_unit(layout_.parameter(tensor).unit); }
  // The same of all tensors.
  void wait();
  // Whether a tensor, or any of them, may still have its former value, since it was not required.
  bool pending(int tensor) const { return pending_[static_cast<std::size_t>(layout_.parameter(tensor).unit)]; }
  bool pending() const;
  // Says that after a step the framework reads some rows of this tensor first, by preview_rows(), and the whole last or
  // never, as of an embedding; so it is updated after the others. It must be alone in its unit, whose state is in host
  // memory.
  void set_late(int tensor);
  // Between step() and the first require() of such a tensor: the new values of some rows of `width` elements, [rows,
  // width] in weight_dtype(). `gradients`: those of these rows, from last_gradient(), which holds until the next
  // gradient is added. The tensor stays pending. False: it is not possible now, and the tensor is to be required.
  bool preview_rows(int tensor, std::int64_t width, std::span<const std::int64_t> rows, const void* gradients,
                    void* weights);
  Tensor last_gradient(int tensor) { return engine_->last_gradient(tensor); }
  DType weight_dtype() const { return engine_->formats().weights; }
  // Forgets the gradients since the last step.
  void drop_gradients();
  bool has_gradients() const;  // since the last step
  bool has_gradient(int tensor) const { return gradients_[static_cast<std::size_t>(tensor)] > 0; }
  // Copies the sum of a tensor's gradients since the last step, of which there is one, in gradient_dtype(), to any
  // memory.
  void read_gradient(int tensor, void* to);
  DType gradient_dtype() const { return engine_->formats().gradients; }

  int count() const { return layout_.count(); }
  std::int64_t elements(int tensor) const { return layout_.range(tensor).size(); }
  // Updates that a tensor has had.
  std::int64_t updates(int tensor) const { return updates_[static_cast<std::size_t>(tensor)]; }
  // Optimizer state of a tensor after the last step, in fp32. Where it is written, upload() ends the writing.
  void read(StateArray array, int tensor, std::span<float> to);
  void write(StateArray array, int tensor, std::span<const float> from);
  void set_updates(int tensor, std::int64_t updates);
  void upload();

  EngineCounters counters() const { return engine_->counters(); }
  std::int64_t reopened_steps() const { return reopened_; }

 private:
  void load_masters(std::span<const OwnedTensor> tensors);
  bool expected_complete(int unit) const;
  void require_unit(int unit);
  // Without a stream of the framework's: waits.
  void settle();
  void begin(std::span<const GroupUpdate> groups, std::span<const std::int64_t> gradients);
  void complete(int unit);
  // Those there are will be all of the step.
  void complete_all(std::span<const GroupUpdate> groups);
  // Undoes what was begun by forecast, if anything was, and makes no other forecast in this step.
  void reopen();

  const std::vector<int> groups_;  // by tensor
  ThreadPool pool_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Communicator> ranks_;
  const std::unique_ptr<EngineOps> ops_;
  const ParameterLayout layout_;
  std::vector<std::int64_t> updates_;    // by tensor
  std::vector<std::int64_t> gradients_;  // by tensor: of this step
  std::vector<std::int64_t> expected_;   // by tensor: of the last step
  std::vector<bool> updated_;            // by tensor: in the step that the host has begun with
  std::vector<bool> completed_;          // by unit
  std::vector<bool> pending_;            // by unit
  std::vector<bool> late_;               // by unit
  std::vector<GroupUpdate> begun_with_;  // empty: the host has not begun
  bool forecasts_ = false;               // in this step
  std::int64_t reopened_ = 0;
  const std::unique_ptr<Stream> own_stream_;
  const std::unique_ptr<Event> switched_;
  std::map<void*, std::unique_ptr<Stream>> wrapped_;  // by handle
  Stream* stream_;
  std::unique_ptr<OffloadEngine> engine_;
};

}  // namespace so
