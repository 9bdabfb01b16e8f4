// Host memory for activations between forward and backward: items that a pass writes one after another and needs again
// in the opposite order, such as layers' inputs. On the device they take places in turn: while one is worked with, the
// one before leaves or the next arrives. The last ones written never leave.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/tensor.h"
#include "device/device.h"

namespace so {

class ActivationStore {
 public:
  static constexpr int places = 2;

  // For up to `items` a pass, each of at most `item_bytes`. Pinned host memory, booked as "layer inputs".
  ActivationStore(Device& device, int items, std::size_t item_bytes);
  // Waits for copies under way.
  ~ActivationStore();
  // The host memory that this takes.
  static std::size_t host_bytes(int items, std::size_t item_bytes);

  // One thread calls all below, with one stream for the model's work.
  // A pass of `items` begins, in this memory of the device, which is the store's until the last release().
  void begin(int items, const std::array<Tensor, places>& memory);
  // Forward, items from 0 on. Work that follows on `stream` may write the item where this says, and read it there until
  // `places` items later.
  Tensor write(int item, Stream& stream);
  // All that writes it has been enqueued.
  void written(int item, Stream& stream);
  // Backward, items from the last to 0. Work that follows on `stream` finds the item where this says.
  Tensor read(int item, Stream& stream);
  // All that reads it has been enqueued.
  void release(int item, Stream& stream);

 private:
  struct Place {
    Tensor memory;
    int item = -1;
    std::unique_ptr<Event> written, arrived, free;
  };
  Place& place(int item) { return places_[static_cast<std::size_t>(item) % places_.size()]; }
  bool leaves(int item) const { return item < items_ - places; }
  void* stored(int item);

  const std::size_t item_bytes_;
  int items_ = 0;
  std::array<Place, places> places_;
  std::vector<std::unique_ptr<Event>> saved_;  // by item that may leave
  Buffer memory_;
  std::unique_ptr<Stream> to_host_, to_device_;
};

}  // namespace so
