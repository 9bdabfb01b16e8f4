#include "offload/memory/activation_store.h"

#include <algorithm>

#include "base/error.h"
#include "device/wait_on_exit.h"

namespace so {

std::size_t ActivationStore::host_bytes(int items, std::size_t item_bytes) {
  return static_cast<std::size_t>(std::max(0, items - places)) * item_bytes;
}

ActivationStore::ActivationStore(Device& device, int items, std::size_t item_bytes) : item_bytes_(item_bytes) {
  if (items == 0) return;
  memory_ = device.allocate(MemoryKind::pinned, host_bytes(items, item_bytes), "layer inputs");
  to_host_ = device.create_stream("inputs out");
  to_device_ = device.create_stream("inputs in");
  for (int item = 0; item < items - places; ++item) saved_.push_back(device.create_event());
  for (Place& place : places_) {
    place.written = device.create_event();
    place.arrived = device.create_event();
    place.free = device.create_event();
  }
}

ActivationStore::~ActivationStore() {
  for (Stream* stream : {to_host_.get(), to_device_.get()})
    if (stream != nullptr) wait_or_log(*stream, LogLevel::debug);  // whoever waits for the copies has been told
}

void* ActivationStore::stored(int item) {
  return static_cast<std::byte*>(memory_.data()) + static_cast<std::size_t>(item) * item_bytes_;
}

void ActivationStore::begin(int items, const std::array<Tensor, places>& memory) {
  SO_CHECK(items - places <= static_cast<int>(saved_.size()) && memory[0].bytes() <= item_bytes_,
           "{} items of {} bytes, of {} that leave", items, memory[0].bytes(), saved_.size());
  items_ = items;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    places_[i].memory = memory[i];
    places_[i].item = -1;
  }
}

Tensor ActivationStore::write(int item, Stream& stream) {
  Place& at = place(item);
  SO_CHECK(at.item == (item < places ? -1 : item - places), "item {} where {} is", item, at.item);
  if (at.item >= 0) stream.wait(*saved_[static_cast<std::size_t>(at.item)]);
  at.item = item;
  return at.memory;
}

void ActivationStore::written(int item, Stream& stream) {
  Place& at = place(item);
  if (!leaves(item)) return;
  stream.record(*at.written);
  to_host_->wait(*at.written);
  to_host_->copy(stored(item), at.memory.data(), at.memory.bytes());
  to_host_->record(*saved_[static_cast<std::size_t>(item)]);
}

Tensor ActivationStore::read(int item, Stream& stream) {
  Place& at = place(item);
  SO_CHECK(at.item == item, "item {} read where {} is", item, at.item);
  if (leaves(item)) stream.wait(*at.arrived);
  return at.memory;
}

void ActivationStore::release(int item, Stream& stream) {
  Place& at = place(item);
  at.item = item - places;
  if (at.item < 0) return;
  stream.record(*at.free);
  to_device_->wait(*at.free);
  to_device_->wait(*saved_[static_cast<std::size_t>(at.item)]);
  to_device_->copy(at.memory.data(), stored(at.item), at.memory.bytes());
  to_device_->record(*at.arrived);
}

}  // namespace so
