// Host memory that a GPU's copy engines reach. Not every driver pins what it is asked to: some refuse large blocks,
// some the program's own pages, some more than a few hundred megabytes. So each block is taken in the first of four
// ways that works, and copies follow from the way.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device/device.h"

namespace so {

// A driver's calls. None leaves an error pending.
struct PinningCalls {
  // Pins pages of the program's. Returns why it cannot; empty: it has.
  std::function<std::string(void* data, std::size_t bytes)> pin;
  std::function<void(void* data)> unpin;
  // Returns pinned pages of the driver's own; null: there are none, for `reason`.
  std::function<void*(std::size_t bytes, std::string& reason)> allocate;
  std::function<void(void* data)> free;
  // Returns the address of pinned memory for the device's kernels; null: it has none.
  std::function<void*(void* data)> address;
};

// Thread-safe.
class HostPinning {
 public:
  enum class Way : std::uint8_t {
    whole,      // pinned at once
    pieces,     // pinned piece by piece; no copy may cross from one to the next
    allocated,  // the driver's own pages
    staged      // not pinned: copies pass through pinned blocks
  };
  static constexpr std::size_t piece_bytes = std::size_t{256} << 20;

  explicit HostPinning(PinningCalls calls) : calls_(std::move(calls)) {}
  ~HostPinning();
  HostPinning(const HostPinning&) = delete;
  HostPinning& operator=(const HostPinning&) = delete;

  // Null when there is no room. A way that is worse than any before is logged, once, with what it costs. Throws Error
  // if the driver pins not even the blocks that copies pass through.
  void* take(std::size_t bytes, const Device::Touch& touch);
  void give_back(void* data) noexcept;

  Way way_of(const void* data) const;  // of the block that this begins
  void* mapped(void* data) const;      // Device::mapped() of such a block

  // Whether all blocks ever taken are whole: then nothing has to be asked about a copy.
  bool plain() const { return worst_.load() == Way::whole; }
  // How far a copy from or to `data` goes in one way, and whether it has to be staged. Memory of others goes directly.
  struct Stretch {
    std::size_t bytes = 0;
    bool staged = false;
  };
  Stretch stretch(const void* data, std::size_t bytes) const;

 private:
  friend class PinnedCopies;
  struct Block {
    std::size_t bytes = 0;
    Way way = Way::whole;
  };
  std::string pin_pieces(std::byte* data, std::size_t bytes) const;
  void make_staging();
  void say(Way way, std::size_t bytes, const std::string& reason);
  void* take_staging();
  void give_back_staging(void* block);

  const PinningCalls calls_;
  std::atomic<Way> worst_ = Way::whole;  // of the blocks so far
  mutable std::mutex mutex_;             // guards what follows
  std::map<const std::byte*, Block> blocks_;
  void* staging_ = nullptr;
  std::size_t staging_bytes_ = 0;      // of a block
  std::vector<void*> staging_blocks_;  // that no stream has
};

// The copies of one stream. One thread at a time calls.
class PinnedCopies {
 public:
  // What the stream does: enqueue a copy between two stretches, or zeros, and host work in its order.
  struct Verbs {
    std::function<void(void* to, const void* from, std::size_t bytes)> copy;
    std::function<void(void* to, std::size_t bytes)> zero;
    std::function<void(std::function<void()> work)> host;
  };
  explicit PinnedCopies(HostPinning& pinning) : pinning_(pinning) {}
  ~PinnedCopies();  // when the stream's work has run
  PinnedCopies(const PinnedCopies&) = delete;
  PinnedCopies& operator=(const PinnedCopies&) = delete;

  // Enqueue, in pieces where they must be. What is staged is a host function and a copy for each block, whose
  // enqueueing may wait until the stream has come near: no stream may wait for what the caller does only after it.
  void copy(void* to, const void* from, std::size_t bytes, const Verbs& verbs);
  void zero(void* to, std::size_t bytes, const Verbs& verbs) const;

 private:
  void stage(std::byte* to, const std::byte* from, std::size_t bytes, bool from_staged, const Verbs& verbs);

  HostPinning& pinning_;
  void* block_ = nullptr;  // taken with the first copy that needs it; the stream's order keeps its uses apart
};

}  // namespace so
