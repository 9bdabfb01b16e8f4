#include "offload/link_update.h"

#include <algorithm>

#include "base/error.h"
#include "device/wait_on_exit.h"
#include "offload/range_update.h"

namespace so {
namespace {

// Long beside the thread's way to the next piece, short beside what the host does with a bucket.
constexpr std::size_t piece_bytes = std::size_t{16} << 20;

}  // namespace

LinkUpdate::LinkUpdate(Device& device, const ParameterLayout& layout, std::int64_t elements, OptimizerState& state,
                       const UnitWeights& weights, const HostGradients& gradients,
                       std::optional<DType> stored_gradients)
    : layout_(layout),
      state_(state),
      weights_(weights),
      gradients_(gradients),
      stored_(stored_gradients),
      adamw_(make_device_adamw(device)) {
  const auto allocate = [&](std::size_t bytes) {
    return device.allocate(MemoryKind::device, bytes, "state on its way");
  };
  const auto allocate_elements = [&](DType dtype) {
    return allocate(static_cast<std::size_t>(elements) * size_of(dtype));
  };
  // The thread that waits leaves its core to AdamW.
  const auto sleeper = [&] { return device.create_event(Timing::off, Waiting::sleeps); };
  for (Slot& slot : slots_) {
    for (const std::size_t bytes : state.array_bytes()) slot.state.push_back(allocate(bytes));
    if (stored_) slot.gradient = allocate_elements(*stored_);
    slot.weights = allocate_elements(weights.on_device().dtype());
    slot.here = device.create_event();
    slot.updated = sleeper();
  }
  up_ = {device.create_stream("state to device"), sleeper()};
  work_ = device.create_stream("update of host state");
  down_ = {device.create_stream("state to host"), sleeper()};
}

LinkUpdate::~LinkUpdate() {
  for (Stream* stream : {up_.stream.get(), work_.get(), down_.stream.get()}) wait_or_log(*stream, LogLevel::error);
}

AdamWState LinkUpdate::state_in(const Slot& slot) const {
  std::vector<void*> arrays;
  for (const Buffer& array : slot.state) arrays.push_back(array.data());
  return state_.state_at(arrays);
}

std::byte* LinkUpdate::kept(const Slot& slot) const {
  const std::int64_t begin = slot.task.bucket->own().begin;
  return slot.task.task == HostTask::follow ? nullptr : weights_.at(begin).host_memory(begin);
}

void LinkUpdate::begin(const LinkTask& task) {
  SO_CHECK(!full(), "a bucket over the link beside {} others", count_);
  Slot& slot = slots_[(oldest_ + count_++) % slots];
  slot.task = task;
  slot.was_complete = task.complete->done();
  slot.begun = std::chrono::steady_clock::now();
  list_copies(slot);
}

void LinkUpdate::list_copies(Slot& slot) const {
  const LinkTask& task = slot.task;
  const Range own = task.bucket->own();
  slot.up.clear();
  slot.down.clear();
  slot.up_next = slot.down_next = 0;
  const std::vector<std::span<std::byte>> old = state_.arrays(*task.bucket);
  const bool beside = task.task == HostTask::speculate,
             changes = task.task != HostTask::preview && task.task != HostTask::weights_first;
  const std::vector<std::span<std::byte>> updated = beside ? state_.arrays_beside(task.place, *task.bucket) : old;
  for (std::size_t i = 0; i < old.size(); ++i) {
    void* const at = slot.state[i].data();
    slot.up.push_back({at, old[i].data(), old[i].size()});
    if (changes) slot.down.push_back({updated[i].data(), at, updated[i].size()});
  }
  std::byte* const weights = kept(slot);
  if (weights == nullptr) return;
  // Gaps between parameters are not written and stay as they are, as do parameters without an update.
  const std::size_t size = size_of(weights_.on_device().dtype());
  for (const AdamWSteps::Run& run : task.steps.runs(layout_, own)) {
    if (run.step == nullptr) continue;
    const std::size_t first = static_cast<std::size_t>(run.range.begin - own.begin) * size;
    slot.down.push_back({weights + first, static_cast<const std::byte*>(slot.weights.data()) + first,
                         static_cast<std::size_t>(run.range.size()) * size});
  }
}

void LinkUpdate::enqueue_piece(const Way& way, Copies& copies, std::size_t& next) {
  for (std::size_t left = piece_bytes; left > 0 && next < copies.size();) {
    Copy& copy = copies[next];
    const std::size_t bytes = std::min(left, copy.bytes);
    way.stream->copy(copy.to, copy.from, bytes);
    copy = {static_cast<std::byte*>(copy.to) + bytes, static_cast<const std::byte*>(copy.from) + bytes,
            copy.bytes - bytes};
    left -= bytes;
    if (copy.bytes == 0) ++next;
  }
  way.stream->record(*way.arrived);
}

void LinkUpdate::update(Slot& slot) {
  const LinkTask& task = slot.task;
  const Range own = task.bucket->own();
  const bool sends = kept(slot) == nullptr && task.task != HostTask::follow && !weights_.follows_masters(own.begin);
  const Tensor gradient = task.stored != nullptr ? Tensor(slot.gradient.data(), *stored_, {own.size()})
                                                 : gradients_.on_device(*slot.task.bucket),
               weights(sends ? static_cast<void*>(weights_.own_at(own.begin)) : slot.weights.data(),
                       weights_.on_device().dtype(), {own.size()});
  up_.stream->record(*slot.here);
  work_->wait(*slot.here);
  work_->wait(*task.complete);
  // Weights that the host has sent, and that are void now, may still be on their way.
  if (sends) work_->wait(*task.current);
  if (task.stored != nullptr) {
    work_->wait(*task.fetched);
    work_->copy(slot.gradient.data(), task.stored, gradient.bytes());
  }
  update_range(*adamw_, *work_, task.steps, layout_, own, gradient, state_in(slot), weights);
  if (task.stored == nullptr) work_->record(*task.fetched);
  if (sends) work_->record(*task.current);
  work_->record(*slot.updated);
}

std::optional<LinkUpdate::Done> LinkUpdate::advance() {
  SO_CHECK(busy(), "no bucket is on the link");
  bool goes_up = false;
  for (std::size_t i = 0; i < count_ && !goes_up; ++i) {
    Slot& arriving = slot(i);
    if (arriving.up_next == arriving.up.size()) continue;
    goes_up = true;
    enqueue_piece(up_, arriving.up, arriving.up_next);
    if (arriving.up_next == arriving.up.size()) update(arriving);
  }
  Slot& oldest = slot(0);
  const bool is_up = oldest.up_next == oldest.up.size();
  const bool goes_down = is_up && oldest.updated->done();
  // A failed update is done too, and no state may leave after it.
  if (goes_down) oldest.updated->synchronize();
  // Where weights alone are made, there may be nothing that goes down.
  if (goes_down && !oldest.down.empty()) enqueue_piece(down_, oldest.down, oldest.down_next);
  const bool last = goes_down && oldest.down_next == oldest.down.size();
  if (last && kept(oldest) != nullptr) down_.stream->record(*oldest.task.current);
  if (!goes_up && !goes_down) oldest.updated->synchronize();
  if (goes_up) up_.arrived->synchronize();
  if (goes_down && !oldest.down.empty()) down_.arrived->synchronize();
  if (!last) return std::nullopt;

  const auto now = std::chrono::steady_clock::now();
  const auto from = std::max(oldest.begun, last_done_);
  last_done_ = now;
  const Done done{oldest.task.bucket->index(), oldest.task.task,
                  oldest.was_complete ? std::chrono::duration<double>(now - from).count() : 0};
  oldest_ = (oldest_ + 1) % slots;
  --count_;
  return done;
}

}  // namespace so
