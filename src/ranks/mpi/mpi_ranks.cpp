#include "ranks/mpi_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "ranks/mpi/mpi_library.h"
#include "ranks/waiting.h"

namespace so {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t largest_message = std::size_t{1} << 30;  // MPI counts in ints
constexpr int data_tag = 1, failure_tag = 2;
// A rank that gives up stays so long at most until the others have been told.
constexpr std::chrono::seconds last_words{2};

std::string text_of(int code) {
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  mpi().error_string(code, text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  return text;
}

// For calls that fail for reasons of their own, never because another rank failed.
void check(int code, const char* what) {
  if (code != MPI_SUCCESS) throw std::runtime_error(fmt::format("MPI: {} failed: {}", what, text_of(code)));
}

// Naps between looks at what has arrived: short at first, so that a quick exchange stays quick, and then long enough to
// leave the CPU to ranks that still work.
class Backoff {
 public:
  void wait() {
    if (looks_++ < 64) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(nap_);
      nap_ = std::min(nap_ * 2, std::chrono::microseconds(500));
    }
  }

 private:
  int looks_ = 0;
  std::chrono::microseconds nap_{10};
};

// MPI itself, and the failure that all communicators of this process share. Failures travel on a communicator of their
// own, as the number of the lost rank and a sentence.
class Session {
 public:
  Session() {
    int provided = 0;
    check(mpi().init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_MULTIPLE)
      fail("this MPI library does not let several threads call it (MPI_THREAD_MULTIPLE): use Debian's Open MPI");
    check(mpi().comm_dup(mpi().comm_world, &failures_), "MPI_Comm_dup");
    mpi().comm_set_errhandler(failures_, mpi().errors_return);
    mpi().comm_rank(failures_, &rank_);
    mpi().comm_size(failures_, &size_);
  }
  // MPI_Finalize waits for every rank, so it comes only where none is lost.
  ~Session() {
    if (!failure_) mpi().finalize();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Throws the failure of this process, or one that another rank has told.
  void throw_failure() {
    const std::lock_guard lock(mutex_);
    if (!failure_) receive_failure();
    if (failure_) throw RankFailure(*failure_);
  }

  // Keeps the first failure and tells it to the others.
  void fail_all(const RankFailure& failure) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = failure;
      tell(failure);
    } catch (...) {  // the others find out by their time limits
    }
  }

 private:
  void receive_failure() {
    int there = 0;
    MPI_Status status;
    if (mpi().iprobe(MPI_ANY_SOURCE, failure_tag, failures_, &there, &status) != MPI_SUCCESS || there == 0) return;
    int length = 0;
    mpi().get_count(&status, mpi().byte, &length);
    std::string text(static_cast<std::size_t>(length), '\0');
    if (mpi().recv(text.data(), length, mpi().byte, status.MPI_SOURCE, failure_tag, failures_, MPI_STATUS_IGNORE) !=
        MPI_SUCCESS)
      return;
    int lost = status.MPI_SOURCE;
    if (text.size() < sizeof lost) return;
    std::memcpy(&lost, text.data(), sizeof lost);
    failure_.emplace(lost, text.substr(sizeof lost));
  }

  void tell(const RankFailure& failure) {
    const int lost = failure.rank();
    message_.assign(reinterpret_cast<const char*>(&lost), sizeof lost);
    message_ += failure.what();
    std::vector<MPI_Request> requests;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      mpi().isend(message_.data(), static_cast<int>(message_.size()), mpi().byte, r, failure_tag, failures_,
                  &requests.emplace_back(mpi().request_null));
    }
    // A lost rank does not receive; the others do while they wait for something.
    const auto deadline = Clock::now() + last_words;
    Backoff backoff;
    for (int all = 0; Clock::now() < deadline; backoff.wait()) {
      mpi().testall(static_cast<int>(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE);
      if (all != 0) return;
    }
  }

  MPI_Comm failures_ = nullptr;
  int rank_ = 0, size_ = 1;
  std::mutex mutex_;  // guards what follows
  std::optional<RankFailure> failure_;
  std::string message_;  // read until it has arrived
};

RankPlace find_place() {
  RankPlace place;
  mpi().comm_rank(mpi().comm_world, &place.rank);
  mpi().comm_size(mpi().comm_world, &place.size);
  MPI_Comm host;
  check(mpi().comm_split_type(mpi().comm_world, MPI_COMM_TYPE_SHARED, 0, mpi().info_null, &host),
        "MPI_Comm_split_type");
  mpi().comm_rank(host, &place.local_rank);
  mpi().comm_size(host, &place.local_size);
  int lowest = place.rank;  // of this host
  check(mpi().bcast(&lowest, 1, mpi().integer, 0, host), "MPI_Bcast");
  mpi().comm_free(&host);
  std::vector<int> all(static_cast<std::size_t>(place.size));
  check(mpi().allgather(&lowest, 1, mpi().integer, all.data(), 1, mpi().integer, mpi().comm_world), "MPI_Allgather");
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  place.hosts = static_cast<int>(all.size());
  place.host = static_cast<int>(std::lower_bound(all.begin(), all.end(), lowest) - all.begin());
  return place;
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<Session> session, MPI_Comm comm, const RankPlace& place, double time_limit)
      : Communicator(place, time_limit), session_(std::move(session)), comm_(comm) {
    mpi().comm_set_errhandler(comm_, mpi().errors_return);
  }
  MpiCommunicator(const MpiCommunicator& of, MPI_Comm comm, const RankPlace& place)
      : Communicator(Duplicate{}, of, place), session_(of.session_), comm_(comm) {
    mpi().comm_set_errhandler(comm_, mpi().errors_return);
  }

  void abort(const std::string& reason) noexcept override { session_->fail_all(gave_up(run_rank(), reason)); }

  // MPI's own call has no time limit, so the ranks meet before it.
  std::unique_ptr<Communicator> duplicate() override {
    barrier();
    MPI_Comm comm;
    check(mpi().comm_dup(comm_, &comm), "MPI_Comm_dup");
    return std::make_unique<MpiCommunicator>(*this, comm, place());
  }

 protected:
  void exchange(const char* what, Sent send, Received receive) override {
    session_->throw_failure();
    requests_.clear();
    parts_.clear();
    for (int step = 1; step < size(); ++step) {  // each rank begins with another, so that none is everybody's first
      const int from = (rank() + size() - step) % size();
      begin(receive[static_cast<std::size_t>(from)], from, mpi().irecv);
    }
    const std::size_t receives = requests_.size();
    for (int step = 1; step < size(); ++step) {
      const int to = (rank() + step) % size();
      begin(send[static_cast<std::size_t>(to)], to, mpi().isend);
    }
    try {
      finish(what, receives);
    } catch (...) {
      give_up_requests(receives);
      throw;
    }
  }

  // MPI numbers a group's ranks in the order of their own.
  std::unique_ptr<Communicator> make_group(const RankPlace& group) override {
    barrier();
    MPI_Comm comm;
    check(mpi().comm_split(comm_, group.first, group.rank, &comm), "MPI_Comm_split");
    return std::make_unique<MpiCommunicator>(*this, comm, group);
  }

 private:
  int run_rank() const { return place().in_run(rank()); }

  struct Part {
    int rank;  // as the run counts them
    std::size_t bytes;
  };

  template <class Bytes, class Call>
  void begin(Bytes bytes, int peer, Call call) {
    while (!bytes.empty()) {
      const std::size_t length = std::min(bytes.size(), largest_message);
      requests_.push_back(mpi().request_null);
      parts_.push_back({place().in_run(peer), length});
      check(call(bytes.data(), static_cast<int>(length), mpi().byte, peer, data_tag, comm_, &requests_.back()),
            "a message");
      bytes = bytes.subspan(length);
    }
  }

  void finish(const char* what, std::size_t receives) {
    RankWait waiting(*this);
    statuses_.resize(requests_.size());
    const auto count = static_cast<int>(requests_.size());
    Backoff backoff;
    for (int done = 0;; backoff.wait()) {
      const int code = mpi().testall(count, requests_.data(), &done, statuses_.data());
      if (code != MPI_SUCCESS) refuse(what, code);
      if (done != 0) break;
      session_->throw_failure();
      if (!waiting.over()) continue;
      std::vector<int> silent = unfinished(0, receives);
      if (silent.empty()) silent = unfinished(receives, requests_.size());
      if (silent.empty()) continue;  // the last one came just now
      session_->fail_all(lost(silent, what, time_limit()));
      session_->throw_failure();
    }
    session_->throw_failure();  // others may have waited for this rank in vain
    for (std::size_t i = 0; i < receives; ++i) {
      int bytes = 0;
      mpi().get_count(&statuses_[i], mpi().byte, &bytes);
      if (static_cast<std::size_t>(bytes) == parts_[i].bytes) continue;
      const std::string misfit = fmt::format("rank {} sends {} bytes, where rank {} expects {} ({})", parts_[i].rank,
                                             bytes, run_rank(), parts_[i].bytes, what);
      abort(misfit);
      SO_BUG("{}", misfit);
    }
  }

  // A message that is longer than what it was expected to be is an error of MPI's; so are those of the network.
  [[noreturn]] void refuse(const char* what, int code) {
    for (std::size_t i = 0; code == MPI_ERR_IN_STATUS && i < parts_.size(); ++i) {
      const int own = statuses_[i].MPI_ERROR;
      if (own == MPI_SUCCESS || own == MPI_ERR_PENDING) continue;
      int error_class = own;
      mpi().error_class(own, &error_class);
      const std::string text = fmt::format("{} with rank {}: {}", what, parts_[i].rank, text_of(own));
      abort(text);
      SO_CHECK(error_class != MPI_ERR_TRUNCATE, "rank {} sends more than the {} bytes that rank {} expects ({})",
               parts_[i].rank, parts_[i].bytes, run_rank(), what);
      throw std::runtime_error(text);
    }
    abort(fmt::format("{}: {}", what, text_of(code)));
    throw std::runtime_error(fmt::format("MPI: {}: {}", what, text_of(code)));
  }

  // Ranks whose messages have not come, or that have not taken this rank's.
  std::vector<int> unfinished(std::size_t first, std::size_t last) {
    std::vector<int> ranks;
    for (std::size_t i = first; i < last; ++i) {
      int done = 0;
      mpi().request_get_status(requests_[i], &done, MPI_STATUS_IGNORE);
      if (done == 0) ranks.push_back(parts_[i].rank);
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

  // The caller's memory is about to go: nothing is received into it any more. MPI reads and writes only while it is
  // called, and after a failure it is not.
  void give_up_requests(std::size_t receives) {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == mpi().request_null) continue;
      if (i < receives) mpi().cancel(&requests_[i]);
      mpi().request_free(&requests_[i]);
    }
  }

  const std::shared_ptr<Session> session_;
  const MPI_Comm comm_;
  // The requests of the exchange under way, receives first.
  std::vector<MPI_Request> requests_;
  std::vector<Part> parts_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace

bool have_mpi() { return true; }

std::unique_ptr<Communicator> make_mpi_ranks(double time_limit) {
  const auto session = std::make_shared<Session>();
  MPI_Comm comm;
  check(mpi().comm_dup(mpi().comm_world, &comm), "MPI_Comm_dup");
  return std::make_unique<MpiCommunicator>(session, comm, find_place(), time_limit);
}

}  // namespace so
