#include "train/frameworks/tensor_optimizer.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "base/bf16_arrays.h"
#include "base/cpus.h"
#include "base/error.h"
#include "offload/schedule/bucket.h"

namespace so {
namespace {

// Beside a device with processors of its own, these cores are left to the thread that feeds it, the framework's own for
// the backward pass, and the engine's streams.
constexpr int cores_of_others = 3;

template <class One>
std::vector<One> part_of(const std::vector<One>& all, int part, int parts) {
  SO_CHECK(0 <= part && part < parts, "part {} of {} of the CPUs", part, parts);
  if (all.size() < static_cast<std::size_t>(parts)) return all;
  const auto at = [&](int i) { return all.begin() + static_cast<std::ptrdiff_t>(all.size()) * i / parts; };
  return {at(part), at(part + 1)};
}

std::vector<int> worker_cpus(const TensorOptimizerSettings& settings) {
  const int threads = settings.threads;
  if (settings.backend->own_processors) {
    const std::vector<std::vector<int>> cores = part_of(usable_cores(), settings.cpu_part, settings.cpu_parts);
    return host_worker_cpus(cores,
                            threads > 0 ? threads : std::max(1, static_cast<int>(cores.size()) - cores_of_others));
  }
  std::vector<int> cpus = part_of(usable_cpus(), settings.cpu_part, settings.cpu_parts);
  if (threads > 0 && static_cast<std::size_t>(threads) < cpus.size()) cpus.resize(static_cast<std::size_t>(threads));
  return cpus;
}

std::vector<Parameter> parameters_of(std::span<const OwnedTensor> tensors) {
  std::vector<Parameter> parameters;
  for (const OwnedTensor& tensor : tensors)
    parameters.push_back({.name = tensor.name, .shape = {tensor.elements}, .decay = true, .unit = tensor.unit});
  return parameters;
}

// Gradients are added up as the tensors' framework adds them: in bf16 if all tensors are bf16.
DType common_dtype(std::span<const OwnedTensor> tensors) {
  const bool narrow =
      std::all_of(tensors.begin(), tensors.end(), [](const OwnedTensor& t) { return t.dtype == DType::bf16; });
  return narrow ? DType::bf16 : DType::f32;
}

EngineSettings engine_settings(std::span<const OwnedTensor> tensors, const ParameterLayout& layout,
                               const TensorOptimizerSettings& settings) {
  EngineSettings engine;
  engine.formats = model_formats(common_dtype(tensors));
  engine.formats.gradients = engine.formats.weights;
  engine.formats.moments = settings.moments;
  engine.placement.units =
      make_rows(trained_units(layout), 1, {.device_units = settings.device_units, .callers = true});
  engine.placement.schedule = settings.schedule;
  engine.placement.over_link = settings.update_over_link;
  engine.placement.bucket_elements = settings.bucket_elements;
  engine.caller.any_order = true;
  engine.caller.awaits_updates = settings.awaits_updates;
  engine.max_grad_norm = settings.max_grad_norm;
  // A place has room for the largest bucket.
  std::int64_t largest = 1, elements = 0;
  for (const Bucket& bucket :
       make_buckets(layout, settings.bucket_elements, engine.placement.units, true, block_elements(settings.moments))) {
    if (!bucket.on_host()) continue;
    largest = std::max(largest, bucket.range().size());
    elements += bucket.range().size();
  }
  engine.placement.spare_buckets =
      std::llround(settings.spare_state * static_cast<double>(elements) / static_cast<double>(largest));
  for (const OwnedTensor& tensor : tensors) engine.caller.weights.push_back({tensor.data, tensor.dtype});
  return engine;
}

Buffer make_staging(Device& device, std::span<const Bucket> buckets) {
  std::int64_t largest = 0;
  for (const Bucket& bucket : buckets) largest = std::max(largest, bucket.range().size());
  return device.allocate(MemoryKind::pinned, static_cast<std::size_t>(largest) * sizeof(float), "loading");
}

}  // namespace

TensorOptimizerMemory memory_of(const std::vector<OwnedTensor>& tensors, const TensorOptimizerSettings& settings) {
  ThreadPool pool("planned", {}, false);
  const std::unique_ptr<Device> device = make_dry_device(*settings.backend);
  const std::unique_ptr<Communicator> ranks = make_single_communicator();
  const ParameterLayout layout(parameters_of(tensors));
  const OffloadEngine engine(*device, pool, *ranks, layout, engine_settings(tensors, layout, settings));
  const Buffer staging = make_staging(*device, engine.buckets());
  TensorOptimizerMemory memory;
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::pageable})
    (kind == MemoryKind::device && settings.backend->own_memory ? memory.device : memory.host) +=
        device->ledger().peak(kind);
  memory.table = device->ledger().table();
  return memory;
}

TensorOptimizer::TensorOptimizer(std::vector<OwnedTensor> tensors, std::vector<int> groups,
                                 TensorOptimizerSettings settings)
    : groups_(std::move(groups)),
      pool_("adamw", worker_cpus(settings), settings.backend->own_processors,
            settings.backend->own_processors ? ThreadPool::long_spin : ThreadPool::no_spin),
      device_(settings.backend->make(&pool_, settings.device_index)),
      ranks_(make_single_communicator()),
      ops_(make_engine_ops(*device_)),
      layout_(parameters_of(tensors)),
      updates_(tensors.size()),
      gradients_(tensors.size()),
      expected_(tensors.size()),
      updated_(tensors.size()),
      completed_(static_cast<std::size_t>(layout_.units())),
      pending_(static_cast<std::size_t>(layout_.units()), true),
      late_(static_cast<std::size_t>(layout_.units()), false),
      own_stream_(device_->create_stream("tensors")),
      switched_(device_->create_event()),
      stream_(own_stream_.get()),
      engine_(std::make_unique<OffloadEngine>(
          *device_, pool_, *ranks_, layout_, engine_settings(tensors, layout_, settings), std::move(settings.policy))) {
  SO_CHECK(groups_.size() == tensors.size(), "{} groups for {} tensors", groups_.size(), tensors.size());
  load_masters(tensors);
  upload();
}

TensorOptimizer::~TensorOptimizer() {
  try {
    stream_->synchronize();
  } catch (const std::exception&) {  // whoever waited for it has been told
  }
}

void TensorOptimizer::use(Stream& stream) {
  if (&stream == stream_) return;
  stream_->record(*switched_);
  stream.wait(*switched_);
  stream_ = &stream;
}

void TensorOptimizer::use(void* handle) {
  std::unique_ptr<Stream>& stream = wrapped_[handle];
  if (!stream) stream = device_->wrap_stream(handle, "framework");
  use(*stream);
}

void TensorOptimizer::settle() {
  if (stream_ == own_stream_.get()) stream_->synchronize();
}

void TensorOptimizer::load_masters(std::span<const OwnedTensor> tensors) {
  const Buffer staging = make_staging(*device_, engine_->buckets());
  for (int t = 0; t < count(); ++t) {
    const OwnedTensor& tensor = tensors[static_cast<std::size_t>(t)];
    const Range range = layout_.range(t);
    engine_->write_state(StateArray::master, range, [&](std::int64_t begin, std::span<float> values) {
      const auto first = static_cast<std::size_t>(begin - range.begin);
      const std::size_t size = size_of(tensor.dtype);
      stream_->copy(staging.data(), static_cast<const std::byte*>(tensor.data) + first * size, values.size() * size);
      stream_->synchronize();
      pool_.parallel_for(static_cast<std::int64_t>(values.size()), 1 << 16, [&](std::int64_t from, std::int64_t to) {
        const auto at = static_cast<std::size_t>(from), elements = static_cast<std::size_t>(to - from);
        if (tensor.dtype == DType::bf16)
          widen_bf16(static_cast<const bf16*>(staging.data()) + at, values.data() + at, elements);
        else
          std::copy_n(static_cast<const float*>(staging.data()) + at, elements, values.data() + at);
      });
    });
  }
}

bool TensorOptimizer::add_gradient(int tensor, const void* gradient, DType dtype) {
  const auto t = static_cast<std::size_t>(tensor);
  const int unit = layout_.parameter(tensor).unit;
  // The host has begun with this unit, or with a step in which the tensor was to have no gradient.
  if (!begun_with_.empty() && (completed_[static_cast<std::size_t>(unit)] || !updated_[t])) reopen();
  require_unit(unit);
  engine_->require_gradients(unit, *stream_);
  const GradientSink::Target target = engine_->gradient(tensor);
  const Tensor from(const_cast<void*>(gradient), dtype, {target.tensor.size()}),
      to(target.tensor.data(), target.tensor.dtype(), {target.tensor.size()});
  if (target.mode == Accumulate::add)
    ops_->add(*stream_, to, from);
  else if (to.dtype() == from.dtype())
    stream_->copy(to.data(), from.data(), from.bytes());
  else
    ops_->cast(*stream_, to, from);
  settle();  // the caller frees it
  ++gradients_[t];
  if (!forecasts_ || gradients_[t] != expected_[t] || !expected_complete(unit)) return false;
  if (begun_with_.empty()) return true;
  complete(unit);
  return false;
}

bool TensorOptimizer::expected_complete(int unit) const {
  const auto [first, last] = layout_.unit_parameters(unit);
  for (auto t = static_cast<std::size_t>(first); t < static_cast<std::size_t>(last); ++t)
    if (gradients_[t] != expected_[t]) return false;
  return true;
}

void TensorOptimizer::forecast(std::span<const GroupUpdate> groups) {
  SO_CHECK(forecasts_ && begun_with_.empty(), "a forecast that was not asked for");
  begin(groups, expected_);
  for (int unit = layout_.units() - 1; unit >= 0; --unit) {
    const auto [first, last] = layout_.unit_parameters(unit);
    const bool any = std::any_of(expected_.begin() + first, expected_.begin() + last, [](auto n) { return n > 0; });
    if (any && expected_complete(unit)) complete(unit);
  }
}

// Has the engine begin with what will be the step's last gradients; tensors that have some in `gradients` are updated.
void TensorOptimizer::begin(std::span<const GroupUpdate> groups, std::span<const std::int64_t> gradients) {
  std::vector<ParameterUpdate> updates;
  for (std::size_t t = 0; t < groups_.size(); ++t) {
    const auto group = static_cast<std::size_t>(groups_[t]);
    SO_CHECK(group < groups.size(), "group {} of {}", group, groups.size());
    updates.push_back({.adamw = groups[group].adamw,
                       .lr = groups[group].lr,
                       .weight_decay = groups[group].weight_decay,
                       .update_number = gradients[t] > 0 ? updates_[t] + 1 : 0});
    updated_[t] = gradients[t] > 0;
  }
  engine_->begin_last_micro_batch(updates);
  begun_with_.assign(groups.begin(), groups.end());
}

void TensorOptimizer::complete(int unit) {
  require_unit(unit);  // before the host may write newer ones
  engine_->require_gradients(unit, *stream_);
  engine_->gradients_ready(unit, *stream_);
  completed_[static_cast<std::size_t>(unit)] = true;
}

void TensorOptimizer::reopen() {
  if (begun_with_.empty()) return;
  engine_->reopen_step();
  completed_.assign(completed_.size(), false);
  begun_with_.clear();
  forecasts_ = false;
  ++reopened_;
}

void TensorOptimizer::complete_all(std::span<const GroupUpdate> groups) {
  SO_CHECK(has_gradients(), "a step without a gradient");
  bool as_begun = std::equal(groups.begin(), groups.end(), begun_with_.begin(), begun_with_.end());
  for (std::size_t t = 0; t < gradients_.size(); ++t) as_begun = as_begun && (gradients_[t] > 0) == updated_[t];
  if (!as_begun) reopen();
  if (begun_with_.empty()) begin(groups, gradients_);
  for (int unit = layout_.units() - 1; unit >= 0; --unit)
    if (!completed_[static_cast<std::size_t>(unit)]) complete(unit);
}

double TensorOptimizer::gradient_norm(std::span<const GroupUpdate> groups) {
  complete_all(groups);
  return engine_->gradient_norm(*stream_);
}

std::vector<GradStats> TensorOptimizer::gradient_statistics(std::span<const GroupUpdate> groups) {
  complete_all(groups);
  return engine_->gradient_statistics(*stream_);
}

Verdict TensorOptimizer::step(std::span<const GroupUpdate> groups, std::span<const GradStats> of_all) {
  complete_all(groups);
  const Verdict verdict = engine_->finish_step(*stream_, of_all);
  for (std::size_t t = 0; t < gradients_.size(); ++t)
    if (verdict.finite && gradients_[t] > 0) ++updates_[t];
  std::swap(expected_, gradients_);
  gradients_.assign(gradients_.size(), 0);
  completed_.assign(completed_.size(), false);
  begun_with_.clear();
  forecasts_ = true;
  pending_.assign(pending_.size(), true);
  return verdict;
}

void TensorOptimizer::set_late(int tensor) {
  const int unit = layout_.parameter(tensor).unit;
  const auto [first, last] = layout_.unit_parameters(unit);
  SO_CHECK(last - first == 1, "tensor {} has others in its unit", tensor);
  engine_->set_late(unit);
  late_[static_cast<std::size_t>(unit)] = true;
}

bool TensorOptimizer::preview_rows(int tensor, std::int64_t width, std::span<const std::int64_t> rows,
                                   const void* gradients, void* weights) {
  const auto unit = static_cast<std::size_t>(layout_.parameter(tensor).unit);
  if (!late_[unit] || !pending_[unit] || has_gradients()) return false;
  return engine_->preview_rows(tensor, width, rows, gradients, weights);
}

bool TensorOptimizer::has_gradients() const {
  return std::any_of(gradients_.begin(), gradients_.end(), [](std::int64_t n) { return n > 0; });
}

void TensorOptimizer::drop_gradients() {
  reopen();
  engine_->drop_gradients();
  gradients_.assign(gradients_.size(), 0);
}

void TensorOptimizer::read_gradient(int tensor, void* to) {
  SO_CHECK(gradients_[static_cast<std::size_t>(tensor)] > 0, "a gradient of tensor {}, which has none", tensor);
  reopen();
  const Tensor from = engine_->gradient(tensor).tensor;
  stream_->copy(to, from.data(), from.bytes());
  settle();
}

void TensorOptimizer::require_unit(int unit) {
  const auto u = static_cast<std::size_t>(unit);
  if (!pending_[u]) return;
  engine_->require_weights(unit, *stream_);
  engine_->release_weights(unit, *stream_);
  pending_[u] = false;
  settle();
}

void TensorOptimizer::wait() {
  for (int unit = 0; unit < layout_.units(); ++unit) require_unit(unit);
}

bool TensorOptimizer::pending() const {
  return std::any_of(pending_.begin(), pending_.end(), [](bool unit) { return unit; });
}

void TensorOptimizer::read(StateArray array, int tensor, std::span<float> to) {
  reopen();
  const Range range = layout_.range(tensor);
  SO_CHECK(static_cast<std::int64_t>(to.size()) == range.size(), "{} of {} elements", to.size(), range.size());
  engine_->read_state(array, range, [&](std::int64_t begin, std::span<const float> values) {
    std::copy(values.begin(), values.end(), to.begin() + (begin - range.begin));
  });
}

void TensorOptimizer::write(StateArray array, int tensor, std::span<const float> from) {
  reopen();
  const Range range = layout_.range(tensor);
  SO_CHECK(static_cast<std::int64_t>(from.size()) == range.size(), "{} of {} elements", from.size(), range.size());
  engine_->write_state(array, range, [&](std::int64_t begin, std::span<float> values) {
    std::copy_n(from.begin() + (begin - range.begin), values.size(), values.begin());
  });
}

void TensorOptimizer::set_updates(int tensor, std::int64_t updates) {
  reopen();
  updates_[static_cast<std::size_t>(tensor)] = updates;
}

void TensorOptimizer::upload() {
  reopen();
  engine_->upload_weights(*stream_);
  pending_.assign(pending_.size(), true);
  wait();
}

}  // namespace so
