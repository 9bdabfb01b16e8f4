#include "ranks/collectives/nccl/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "ranks/collectives/nccl/nccl_library.h"
#include "ranks/together.h"
#include "ranks/waiting.h"

namespace so {
namespace {

using NcclClock = std::chrono::steady_clock;

constexpr std::chrono::seconds connect_limit{300};  // many hosts take a while
constexpr std::chrono::seconds abort_patience{5};
constexpr std::chrono::seconds close_limit{5};  // a rank that fails does not come to the end

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

NcclCommunicator::NcclCommunicator(Device& device, Communicator& ranks, int most_blocks) : device_(device) {
  std::unique_ptr<Communicator> own = ranks.duplicate();
  together(ranks, [] { nccl(); });
  comm_ = connect_ranks(device, ranks, most_blocks);
  watch_ = std::make_unique<CollectiveWatch>(
      device, std::move(own),
      CollectiveWatch::Carrier{"a collective of NCCL's", [this](const char* what) { check(what); },
                               [this] { abort(); }});
}

NcclCommunicator::~NcclCommunicator() {
  watch_->stop();
  close();
}

// The watch's, which looks for failures that no call of ours has met. While one is under way that one looks itself.
void NcclCommunicator::check(const char* what) {
  const Lock lock(calls_, std::try_to_lock);
  if (!lock) return;
  ncclResult_t state = ncclSuccess;
  check_nccl(nccl().state(comm_, &state), comm_, "ncclCommGetAsyncError");
  check_nccl(state, comm_, what);
}

// The watch's, after a failure. A call that waits inside of CUDA for room in a queue comes back only when NCCL's
// kernels have been ended, so this waits for no call for long.
void NcclCommunicator::abort() noexcept {
  const Lock lock(calls_, abort_patience);
  if (comm_ != nullptr) nccl().abort(comm_);
  comm_ = nullptr;
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

void NcclCommunicator::group(Stream& stream, const char* what, const std::function<void()>& calls) {
  const CollectiveWatch::Collective collective = watch_->begin(stream, what);
  Lock lock(calls_);
  watch_->rethrow();  // after which there may be no communicator
  stream_ = cuda_stream(stream);
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
  watch_->end(stream, collective);
}

// The watch finds who is lost within the time limit, so this waits for twice as long.
void NcclCommunicator::settle(Lock& lock, ncclResult_t result, const char* what) {
  std::optional<RankWait> waiting(watch_->ranks());
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
    watch_->rethrow();
    check_nccl(nccl().state(comm_, &result), comm_, what);
    if (!waiting->over()) continue;
    if (++limits == 2)
      watch_->give_up(fmt::format("NCCL has not connected it to the others within {:g} s ({})",
                                  2 * watch_->ranks().time_limit(), what));
    waiting.emplace(watch_->ranks());
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

}  // namespace so
