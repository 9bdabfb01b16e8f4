#include "device/host_pinning.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/quantities.h"
#include "device/host_pages.h"

namespace so {
namespace {

// One a stream. They are had at once, when the first unpinned block is taken: an allocation between a stream's work
// might wait for that work. A driver that pins little gives smaller ones.
constexpr std::size_t staging_count = 64, most_staging = std::size_t{1} << 20, least_staging = std::size_t{1} << 16;

}  // namespace

HostPinning::~HostPinning() {
  if (staging_ != nullptr) calls_.free(staging_);
}

std::string HostPinning::pin_pieces(std::byte* data, std::size_t bytes) const {
  for (std::size_t begin = 0; begin < bytes; begin += piece_bytes) {
    std::string reason = calls_.pin(data + begin, std::min(piece_bytes, bytes - begin));
    if (reason.empty()) continue;
    while (begin > 0) calls_.unpin(data + (begin -= piece_bytes));
    return reason;
  }
  return {};
}

void* HostPinning::take(std::size_t bytes, const Device::Touch& touch) {
  // Pages of our own, so that no more is pinned than was asked for: CUDA's own pinned allocator rounds up.
  const auto map = [&] {
    void* const pages = map_host_pages(bytes);
    if (pages != nullptr && touch) touch(pages, bytes);
    return pages;
  };
  void* data = map();
  if (data == nullptr) return nullptr;
  Way way = Way::whole;
  std::string reason = calls_.pin(data, bytes), why = reason;
  if (!why.empty() && bytes > piece_bytes) {
    way = Way::pieces;
    why = pin_pieces(static_cast<std::byte*>(data), bytes);
  }
  if (!why.empty()) {
    unmap_host_pages(data, bytes);  // there may be no room for both
    way = Way::allocated;
    data = calls_.allocate(bytes, reason);
    if (data != nullptr && touch) touch(data, bytes);
  }
  if (data == nullptr) {
    way = Way::staged;
    make_staging();
    data = map();
    if (data == nullptr) return nullptr;
  }
  if (way != Way::whole) say(way, bytes, reason);
  const std::lock_guard lock(mutex_);
  blocks_[static_cast<const std::byte*>(data)] = {bytes, way};
  return data;
}

void HostPinning::give_back(void* data) noexcept {
  const auto* const begin = static_cast<std::byte*>(data);
  Block block;
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(begin);
    if (found == blocks_.end()) return;
    block = found->second;
    blocks_.erase(found);
  }
  if (block.way == Way::allocated) return calls_.free(data);
  if (block.way == Way::whole) calls_.unpin(data);
  if (block.way == Way::pieces)
    for (std::size_t at = 0; at < block.bytes; at += piece_bytes) calls_.unpin(static_cast<std::byte*>(data) + at);
  unmap_host_pages(data, block.bytes);
}

void HostPinning::make_staging() {
  const std::lock_guard lock(mutex_);
  if (staging_ != nullptr) return;
  std::string reason;
  for (std::size_t bytes = most_staging; staging_ == nullptr && bytes >= least_staging; bytes /= 2) {
    staging_ = calls_.allocate(staging_count * bytes, reason);
    staging_bytes_ = bytes;
  }
  if (staging_ == nullptr)
    fail("the CUDA driver pins no host memory, not even {} ({}); use --device cpu, or see docs/running.md",
         format_bytes(staging_count * least_staging), reason);
  for (std::size_t i = 0; i < staging_count; ++i)
    staging_blocks_.push_back(static_cast<std::byte*>(staging_) + i * staging_bytes_);
}

void HostPinning::say(Way way, std::size_t bytes, const std::string& reason) {
  Way before = worst_.load();
  do
    if (before >= way) return;
  while (!worst_.compare_exchange_weak(before, way));
  if (way == Way::pieces) {
    log_info(
        "memory: the driver pins no host memory of {} at once ({}), so it is pinned in pieces of {}; copies are cut at "
        "their borders, which costs microseconds",
        format_bytes(bytes), reason, format_bytes(piece_bytes));
  } else if (way == Way::allocated) {
    log_info(
        "memory: the driver does not pin the program's own pages ({}), so it allocates host memory itself: that takes "
        "longer, and is not spread over the host's threads; copies are as fast",
        reason);
  } else {
    const std::string advice = lock_limit_advice(bytes);
    log_warning(
        "memory: the driver cannot pin {} of host memory ({}), so copies of it pass through pinned blocks of {} and take "
        "a thread of the host: they are several times as slow{}{}",
        format_bytes(bytes), reason, format_bytes(staging_bytes_), advice.empty() ? "" : "; ", advice);
  }
}

HostPinning::Way HostPinning::way_of(const void* data) const {
  const std::lock_guard lock(mutex_);
  return blocks_.at(static_cast<const std::byte*>(data)).way;
}

void* HostPinning::mapped(void* data) const {
  auto* const begin = static_cast<std::byte*>(data);
  Block block;
  {
    const std::lock_guard lock(mutex_);
    block = blocks_.at(begin);
  }
  if (block.way == Way::staged) return nullptr;
  auto* const there = static_cast<std::byte*>(calls_.address(data));
  if (there == nullptr || block.way != Way::pieces) return there;
  for (std::size_t at = piece_bytes; at < block.bytes; at += piece_bytes)
    if (calls_.address(begin + at) != there + at) return nullptr;
  return there;
}

HostPinning::Stretch HostPinning::stretch(const void* data, std::size_t bytes) const {
  const auto* const at = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  auto found = blocks_.upper_bound(at);
  if (found == blocks_.begin()) return {bytes, false};
  const auto& [begin, block] = *--found;
  if (at >= begin + block.bytes) return {bytes, false};
  if (block.way != Way::pieces) return {bytes, block.way == Way::staged};
  const std::size_t in_piece = static_cast<std::size_t>(at - begin) % piece_bytes;
  return {std::min(bytes, piece_bytes - in_piece), false};
}

void* HostPinning::take_staging() {
  const std::lock_guard lock(mutex_);
  SO_CHECK(!staging_blocks_.empty(), "more than {} streams copy unpinned memory", staging_count);
  void* const block = staging_blocks_.back();
  staging_blocks_.pop_back();
  return block;
}

void HostPinning::give_back_staging(void* block) {
  const std::lock_guard lock(mutex_);
  staging_blocks_.push_back(block);
}

PinnedCopies::~PinnedCopies() {
  if (block_ != nullptr) pinning_.give_back_staging(block_);
}

void PinnedCopies::copy(void* to, const void* from, std::size_t bytes, const Verbs& verbs) {
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const HostPinning::Stretch write = pinning_.stretch(out, bytes), read = pinning_.stretch(in, write.bytes);
    const std::size_t n = read.bytes;
    if (!write.staged && !read.staged)
      verbs.copy(out, in, n);
    else if (write.staged && read.staged)
      verbs.host([out, in, n] { std::memcpy(out, in, n); });
    else
      stage(out, in, n, read.staged, verbs);
    out += n;
    in += n;
    bytes -= n;
  }
}

void PinnedCopies::stage(std::byte* to, const std::byte* from, std::size_t bytes, bool from_staged,
                         const Verbs& verbs) {
  if (block_ == nullptr) block_ = pinning_.take_staging();
  for (std::size_t begin = 0; begin < bytes; begin += pinning_.staging_bytes_) {
    const std::size_t n = std::min(pinning_.staging_bytes_, bytes - begin);
    void *const there = to + begin, *const block = block_;
    const void* const here = from + begin;
    if (from_staged) {
      verbs.host([=] { std::memcpy(block, here, n); });
      verbs.copy(there, block, n);
    } else {
      verbs.copy(block, here, n);
      verbs.host([=] { std::memcpy(there, block, n); });
    }
  }
}

void PinnedCopies::zero(void* to, std::size_t bytes, const Verbs& verbs) const {
  auto* out = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const auto [n, staged] = pinning_.stretch(out, bytes);
    if (staged)
      verbs.host([out, n = n] { std::memset(out, 0, n); });
    else
      verbs.zero(out, n);
    out += n;
    bytes -= n;
  }
}

}  // namespace so
