#include "collectives/nccl/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "collectives/nccl/nccl_library.h"
#include "device/cuda/cuda_device.h"
#include "ranks/together.h"

namespace so {
namespace {

using NcclClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds beat_period{200};
constexpr std::chrono::seconds connect_limit{300};  // many hosts take a while
constexpr std::chrono::seconds close_limit{5};      // a rank that fails does not come to the end

// A word of NCCL's that it is another rank's failure, whose own words say more.
constexpr const char* remote_text = "NCCL has lost another rank";

std::string nccl_text(ncclResult_t result, ncclComm_t comm, const char* call) {
  if (result == ncclRemoteError)
    return fmt::format("{}: its process has ended, or the connection to it is broken ({})", remote_text, call);
  const char* const detail = nccl().last_error(comm);
  std::string text = fmt::format("NCCL: {}", nccl().error_string(result));
  if (detail != nullptr && *detail != '\0') text += fmt::format(" ({})", detail);
  text += fmt::format(": {}", call);
  if (result == ncclSystemError) text += "; check the space in /dev/shm, and the network between the hosts";
  return text + "; NCCL_DEBUG=WARN says more";
}

// A call that is still being made is no failure.
void check_nccl(ncclResult_t result, ncclComm_t comm, const char* call) {
  if (result != ncclSuccess && result != ncclInProgress) fail("{}", nccl_text(result, comm, call));
}

ncclComm_t join_ranks(Device& device, const RankPlace& place, const std::string& id_bytes, int most_blocks) {
  device.make_current();
  ncclUniqueId id;
  SO_CHECK(id_bytes.size() == sizeof id, "an id of {} bytes", id_bytes.size());
  std::memcpy(&id, id_bytes.data(), sizeof id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (most_blocks > 0) config.maxCTAs = most_blocks;
  ncclComm_t comm = nullptr;
  ncclResult_t result = nccl().init(&comm, place.size, id, place.rank, &config);
  const NcclClock::time_point deadline = NcclClock::now() + connect_limit;
  while (result == ncclInProgress && NcclClock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (const ncclResult_t asked = nccl().state(comm, &result); asked != ncclSuccess) result = asked;
  }
  if (result == ncclSuccess) return comm;
  const std::string text =
      result == ncclInProgress
          ? fmt::format("NCCL has not connected the ranks' GPUs within {} s; NCCL_DEBUG=INFO says what it tries",
                        connect_limit.count())
          : nccl_text(result, comm, "ncclCommInitRankConfig");
  if (comm != nullptr) nccl().abort(comm);
  fail("{}", text);
}

// If some ranks fail, the first with a reason of its own is whose words all throw.
ncclComm_t connect_ranks(Device& device, Communicator& ranks, int most_blocks) {
  const std::string id = on_first_rank(ranks, [] {
    ncclUniqueId made;
    check_nccl(nccl().unique_id(&made), nullptr, "ncclGetUniqueId");
    return std::string(reinterpret_cast<const char*>(&made), sizeof made);
  });
  ncclComm_t comm = nullptr;
  const std::vector<std::string> texts = gather_texts(ranks, [&]() -> std::string {
    try {
      comm = join_ranks(device, ranks.place(), id, most_blocks);
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  });
  const auto failed = std::find_if(texts.begin(), texts.end(), [](const std::string& text) { return !text.empty(); });
  if (failed == texts.end()) return comm;
  if (comm != nullptr) nccl().abort(comm);
  const auto own_reason = std::find_if(
      failed, texts.end(), [](const std::string& text) { return !text.empty() && !text.starts_with(remote_text); });
  const auto first = own_reason == texts.end() ? failed : own_reason;
  const auto rank = first - texts.begin();
  fail_on_all(rank == 0 ? *first : fmt::format("rank {}: {}", rank, *first));
}

}  // namespace

NcclCommunicator::NcclCommunicator(Device& device, Communicator& ranks, int most_blocks)
    : device_(device), ranks_(ranks.duplicate()) {
  together(ranks, [] { nccl(); });
  comm_ = connect_ranks(device, ranks, most_blocks);
  watch_ = std::thread([this] { watch(); });
}

NcclCommunicator::~NcclCommunicator() {
  {
    const Lock lock(mutex_);
    leaving_ = true;
  }
  changed_.notify_all();
  watch_.join();
  close();
}

void NcclCommunicator::close() noexcept {
  if (comm_ == nullptr) return;
  try {
    device_.make_current();
    ncclResult_t result = nccl().finalize(comm_);
    const NcclClock::time_point deadline = NcclClock::now() + close_limit;
    while (result == ncclInProgress && NcclClock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (const ncclResult_t asked = nccl().state(comm_, &result); asked != ncclSuccess) result = asked;
    }
    if (result == ncclSuccess)
      nccl().destroy(comm_);
    else
      nccl().abort(comm_);
  } catch (...) {  // the device is gone, and NCCL's memory with it
  }
  comm_ = nullptr;
}

// ---- The calls of the stream's thread ----

std::unique_ptr<Event> NcclCommunicator::take_event() {
  if (events_.empty()) return device_.create_event();
  std::unique_ptr<Event> event = std::move(events_.back());
  events_.pop_back();
  return event;
}

void NcclCommunicator::group(Stream& stream, const char* what, const std::function<void()>& calls) {
  Lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  Pending pending{number_ + 1, what, take_event(), take_event()};
  stream_ = cuda_stream(stream);
  stream.record(*pending.begun);
  check_nccl(nccl().group_start(), comm_, what);
  std::exception_ptr thrown;
  try {
    calls();
  } catch (...) {
    thrown = std::current_exception();
  }
  const ncclResult_t result = nccl().group_end();
  if (thrown) std::rethrow_exception(thrown);
  settle(lock, result, what);
  stream.record(*pending.ended);
  number_ = pending.number;
  pending_.push_back(std::move(pending));
}

// The watch finds who is lost within the time limit, so this waits for twice as long.
void NcclCommunicator::settle(Lock& lock, ncclResult_t result, const char* what) {
  std::optional<RankWait> waiting(*ranks_);
  int limits = 0;
  // A thread of NCCL's takes tens of microseconds for this, and a nap would be several times as long; only the making
  // of connections takes longer.
  const NcclClock::time_point naps = NcclClock::now() + std::chrono::milliseconds(2);
  while (result == ncclInProgress) {
    lock.unlock();
    if (NcclClock::now() < naps)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    lock.lock();
    if (failure_) std::rethrow_exception(failure_);
    check_nccl(nccl().state(comm_, &result), comm_, what);
    if (!waiting->over()) continue;
    if (++limits == 2)
      give_up(
          fmt::format("NCCL has not connected it to the others within {:g} s ({})", 2 * ranks_->time_limit(), what));
    waiting.emplace(*ranks_);
  }
  check_nccl(result, comm_, what);
}

void NcclCommunicator::send(const void* from, std::size_t bytes, int to) {
  check_nccl(nccl().send(from, bytes, ncclInt8, to, comm_, stream_), comm_, "ncclSend");
}

void NcclCommunicator::receive(void* to, std::size_t bytes, int from) {
  check_nccl(nccl().receive(to, bytes, ncclInt8, from, comm_, stream_), comm_, "ncclRecv");
}

void NcclCommunicator::all_gather(const void* own, std::size_t bytes, void* all) {
  check_nccl(nccl().all_gather(own, all, bytes, ncclInt8, comm_, stream_), comm_, "ncclAllGather");
}

// ---- The watch ----

void NcclCommunicator::watch() noexcept {
  try {
    watch_until_left();
  } catch (...) {
    fail(std::current_exception());
  }
}

void NcclCommunicator::watch_until_left() {
  device_.make_current();
  // Every rank sees the same beats, so all stop alike when one leaves: from there on each watches for itself.
  for (bool beats = true;;) {
    const Beat own = look();
    std::vector<Beat> all(static_cast<std::size_t>(ranks_->size()), own);
    if (beats) {
      const std::vector<std::int64_t> one_each(all.size(), 1);
      ranks_->all_gather(std::span(&own, 1), one_each, std::span(all));
      beats = std::none_of(all.begin(), all.end(), [](const Beat& beat) { return beat.leaving != 0; });
    }
    judge(all);
    if (own.leaving != 0) return;
    Lock lock(mutex_);
    changed_.wait_for(lock, beat_period, [&] { return leaving_; });
  }
}

NcclCommunicator::Beat NcclCommunicator::look() {
  const Lock lock(mutex_);
  ncclResult_t state = ncclSuccess;
  check_nccl(nccl().state(comm_, &state), comm_, "ncclCommGetAsyncError");
  check_nccl(state, comm_, pending_.empty() ? "between collectives" : pending_.front().what);
  while (!pending_.empty() && pending_.front().ended->done()) {
    events_.push_back(std::move(pending_.front().begun));
    events_.push_back(std::move(pending_.front().ended));
    pending_.pop_front();
  }
  Beat beat{.begun = number_, .leaving = leaving_ ? 1 : 0};
  if (pending_.empty()) {
    waiting_for_ = 0;
    return beat;
  }
  const Pending& head = pending_.front();
  beat.begun = head.begun->done() ? head.number : head.number - 1;
  if (beat.begun != head.number) return beat;
  if (waiting_for_ != head.number) waiting_.emplace(*ranks_);
  waiting_for_ = head.number;
  if (waiting_->over()) beat.overdue = head.number;
  return beat;
}

// Whether the others wait for this rank, or this one for what no rank has failed to begin.
void NcclCommunicator::judge(const std::vector<Beat>& beats) {
  const Beat& own = beats[static_cast<std::size_t>(ranks_->rank())];
  std::int64_t overdue = 0;
  for (const Beat& beat : beats) overdue = std::max(overdue, beat.overdue);
  if (overdue == 0) return;
  const double limit = ranks_->time_limit();
  if (own.begun < overdue)
    give_up(fmt::format("it has not come to a collective in which the other ranks have waited for {:g} s", limit));
  if (own.overdue > 0 && std::all_of(beats.begin(), beats.end(), [&](const Beat& b) { return b.begun >= overdue; }))
    give_up(fmt::format("a collective of NCCL's has not ended within {:g} s", limit));
  // Else the one that is behind gives up, which this one hears of with the next beat.
}

void NcclCommunicator::give_up(const std::string& reason) {
  ranks_->abort(reason);
  throw Communicator::gave_up(ranks_->rank(), reason);
}

void NcclCommunicator::fail(std::exception_ptr error) noexcept {
  fail_streams(device_, error);  // first, so that what the end of NCCL's kernels wakes finds it
  const Lock lock(mutex_);
  failure_ = std::move(error);
  if (comm_ != nullptr) nccl().abort(comm_);
  comm_ = nullptr;
  pending_.clear();
}

}  // namespace so
