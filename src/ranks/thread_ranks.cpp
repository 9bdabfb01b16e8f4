#include "ranks/thread_ranks.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "base/delay_point.h"
#include "base/error.h"
#include "ranks/waiting.h"

namespace so {
namespace {

// Shared by all communicators of a group and their duplicates: one lock, and the first failure.
struct Group {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<RankFailure> failure;
};

// Where the ranks of one communicator meet. An exchange has a number, which counts up on each rank alike. A rank posts
// what it sends, waits until all have posted, copies what it is to receive, and waits until all have copied, since its
// memory is read until then.
struct Meeting {
  struct Post {
    std::int64_t posted = 0, taken = 0;  // the last exchange that this rank has come to, and has copied from
    bool copying = false;                // reads the others' memory
    const char* what = nullptr;
    std::span<const std::span<const std::byte>> send;
  };
  explicit Meeting(int size) : posts(static_cast<std::size_t>(size)) {}
  // Guarded by the group's lock.
  std::vector<Post> posts;                       // by rank
  std::shared_ptr<Meeting> next;                 // of the duplicates that are being made
  std::vector<std::shared_ptr<Meeting>> groups;  // of those that are being made of some of the ranks
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, std::shared_ptr<Meeting> meeting, const RankPlace& place,
                     double time_limit)
      : Communicator(place, time_limit), group_(std::move(group)), meeting_(std::move(meeting)) {}
  ThreadCommunicator(const ThreadCommunicator& of, std::shared_ptr<Meeting> meeting)
      : ThreadCommunicator(of, std::move(meeting), of.place()) {}
  ThreadCommunicator(const ThreadCommunicator& of, std::shared_ptr<Meeting> meeting, const RankPlace& place)
      : Communicator(Duplicate{}, of, place), group_(of.group_), meeting_(std::move(meeting)) {}

  void abort(const std::string& reason) noexcept override {
    {
      const std::lock_guard lock(group_->mutex);
      if (!group_->failure) group_->failure = gave_up(place().in_run(rank()), reason);
    }
    group_->changed.notify_all();
  }

  std::unique_ptr<Communicator> duplicate() override {
    if (rank() == 0) {
      const std::lock_guard lock(group_->mutex);
      meeting_->next = std::make_shared<Meeting>(size());
    }
    barrier();
    std::shared_ptr<Meeting> next;
    {
      const std::lock_guard lock(group_->mutex);
      next = meeting_->next;
    }
    barrier();  // rank 0 may make another one from here on
    return std::make_unique<ThreadCommunicator>(*this, std::move(next));
  }

 protected:
  void exchange(const char* what, Sent send, Received receive) override {
    delay_point();
    RankWait waiting(*this);
    std::unique_lock lock(group_->mutex);
    throw_failure();
    ++number_;
    Meeting::Post& own = post(rank());
    own.send = send;
    own.what = what;
    own.posted = number_;
    group_->changed.notify_all();
    wait(lock, waiting, what, &Meeting::Post::posted);
    own.copying = true;
    const std::string misfit = misfit_of(what, receive);
    lock.unlock();
    delay_point();
    if (misfit.empty()) copy(receive);
    lock.lock();
    own.copying = false;
    own.taken = number_;
    if (!misfit.empty() && !group_->failure) group_->failure = gave_up(place().in_run(rank()), misfit);
    group_->changed.notify_all();
    if (!misfit.empty()) wait_for_readers(lock);
    SO_CHECK(misfit.empty(), "{}", misfit);
    wait(lock, waiting, what, &Meeting::Post::taken);
  }

  std::unique_ptr<Communicator> make_group(const RankPlace& group) override {
    if (rank() == 0) {
      const std::lock_guard lock(group_->mutex);
      meeting_->groups.clear();
      for (int first = 0; first < size(); first += group.size)
        meeting_->groups.push_back(std::make_shared<Meeting>(group.size));
    }
    barrier();
    std::shared_ptr<Meeting> own;
    {
      const std::lock_guard lock(group_->mutex);
      own = meeting_->groups[static_cast<std::size_t>(rank() / group.size)];
    }
    barrier();  // rank 0 may make others from here on
    return std::make_unique<ThreadCommunicator>(*this, std::move(own), group);
  }

 private:
  Meeting::Post& post(int rank) { return meeting_->posts[static_cast<std::size_t>(rank)]; }

  void throw_failure() const {
    if (group_->failure) throw RankFailure(*group_->failure);
  }

  // Waits until this counter of every rank has come to the exchange. Memory that others read stays until they have: on
  // the way out of a failed exchange too, after which none begins to read.
  void wait(std::unique_lock<std::mutex>& lock, RankWait& waiting, const char* what,
            std::int64_t Meeting::Post::*counter) {
    const auto all_here = [&] {
      return std::all_of(meeting_->posts.begin(), meeting_->posts.end(),
                         [&](const Meeting::Post& p) { return p.*counter >= number_; });
    };
    const auto ready = [&] { return group_->failure || all_here(); };
    while (!group_->changed.wait_for(lock, std::chrono::duration<double>(std::min(waiting.left(), 0.5)), ready)) {
      if (!waiting.over()) continue;
      std::vector<int> missing;
      for (int r = 0; r < size(); ++r)
        if (post(r).*counter < number_) missing.push_back(place().in_run(r));
      group_->failure = lost(missing, what, time_limit());
      group_->changed.notify_all();
    }
    if (!group_->failure) return;
    wait_for_readers(lock);
    throw_failure();
  }

  void wait_for_readers(std::unique_lock<std::mutex>& lock) {
    group_->changed.wait(lock, [&] {
      return std::none_of(meeting_->posts.begin(), meeting_->posts.end(),
                          [](const Meeting::Post& p) { return p.copying; });
    });
  }

  std::string misfit_of(const char* what, Received receive) {
    const auto self = static_cast<std::size_t>(rank());
    for (int r = 0; r < size(); ++r) {
      const Meeting::Post& other = post(r);
      const std::size_t sent = other.send[self].size(), expected = receive[static_cast<std::size_t>(r)].size();
      if (r != rank() && (sent != expected || std::strcmp(other.what, what) != 0))
        return fmt::format("rank {} sends {} bytes ({}), where rank {} expects {} ({})", place().in_run(r), sent,
                           other.what, place().in_run(rank()), expected, what);
    }
    return {};
  }

  void copy(Received receive) {
    const auto self = static_cast<std::size_t>(rank());
    for (std::size_t r = 0; r < receive.size(); ++r) {
      if (r == self || receive[r].empty()) continue;
      std::memcpy(receive[r].data(), meeting_->posts[r].send[self].data(), receive[r].size());
    }
  }

  const std::shared_ptr<Group> group_;
  const std::shared_ptr<Meeting> meeting_;
  std::int64_t number_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_ranks(int size, double time_limit) {
  SO_CHECK(size >= 1, "{} ranks", size);
  const auto group = std::make_shared<Group>();
  const auto meeting = std::make_shared<Meeting>(size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    const RankPlace place{.rank = rank, .size = size, .local_rank = rank, .local_size = size};
    ranks.push_back(std::make_unique<ThreadCommunicator>(group, meeting, place, time_limit));
  }
  return ranks;
}

}  // namespace so
