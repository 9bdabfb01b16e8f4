// The ranks of a run and what they tell each other. A rank is a process with a device of its own, or, in unit tests, a
// thread. A run on one device is a communicator of one, whose collectives do nothing.
//
// Results are the same bits on every rank and in every run: sums are made in rank order, at one place. A
// reduction is an exchange of slices, after which each rank adds what it owns; it moves as many bytes as a ring would,
// and unlike a ring's its order of additions depends on neither the slices nor their cut.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace so {

struct RankPlace {
  int rank = 0, size = 1;              // in the run, or in the group that split() made
  int local_rank = 0, local_size = 1;  // among the ranks of this host
  int host = 0, hosts = 1;             // hosts are numbered by their lowest ranks
  int first = 0;                       // the run's rank that is rank 0 here: 0 but in a group
  int in_run(int other) const { return first + other; }
};

// A rank was lost, or gave up. It is not the user's to mend (so::Error), and no collective can follow.
class RankFailure : public std::runtime_error {
 public:
  RankFailure(int rank, const std::string& message) : std::runtime_error(message), rank_(rank) {}
  int rank() const { return rank_; }  // the one that is lost or gave up; the lowest of several
  bool gave_up() const;               // with a reason of its own, which the text says; else nothing is heard of it

 private:
  int rank_;
};

// Collectives on host memory. Every rank makes the same calls in the same order with the same counts; a call returns
// when its result is in place on this rank and the caller's memory is no longer read. One thread at a time calls;
// threads whose calls have no common order each take a duplicate().
//
// A call waits for the ranks that it needs for at most time_limit() seconds, their own work included. After that, or
// after abort(), that call and every other one that waits, and all later ones, on any rank and any duplicate, throw one
// RankFailure that names the rank that is lost; what they should have written is undefined. Calls that do not fit
// together (other counts) are a Bug on a rank that notices and a RankFailure on the others.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const RankPlace& place() const { return place_; }
  int rank() const { return place_.rank; }
  int size() const { return place_.size; }

  // Element-wise sum over ranks, the same on each. For short arrays (norms, losses): every rank receives all of them.
  void all_reduce_sum(std::span<double> values);
  void all_reduce_sum(std::span<float> values);

  // Slices of an array by rank: counts[r] elements belong to rank r, one rank's after another's, and the counts add up
  // to the array's length. Some may be 0.
  //
  // `own` receives the sum over ranks of the caller's slice: counts[rank()] elements, added in fp32. It may be that
  // slice of `values` itself. Works in pieces, so it takes memory for reduction_scratch() bytes and no more.
  void reduce_scatter_sum(std::span<const float> values, std::span<const std::int64_t> counts, std::span<float> own);
  void reduce_scatter_sum(std::span<const bf16> values, std::span<const std::int64_t> counts, std::span<float> own);
  static std::size_t reduction_scratch(int size);
  // `all` receives every rank's slice. `own`, counts[rank()] elements, may lie at its place in `all` already.
  template <class T>
  void all_gather(std::span<const T> own, std::span<const std::int64_t> counts, std::span<T> all) {
    gather_bytes(std::as_bytes(own), counts, sizeof(T), std::as_writable_bytes(all));
  }
  // Part r of `send`, send_bytes[r] bytes, goes to rank r, and part r of `receive` comes from it. Parts lie one after
  // another, this rank's own among them, and the two arrays do not overlap.
  void all_to_all(std::span<const std::byte> send, std::span<const std::int64_t> send_bytes,
                  std::span<std::byte> receive, std::span<const std::int64_t> receive_bytes);
  // Short texts, of any lengths, by rank: names, versions, settings that must agree.
  std::vector<std::string> all_gather(std::string_view own);
  // Replaces `bytes` by those of rank `root`.
  void broadcast(std::span<std::byte> bytes, int root);
  // Returns once every rank has called it.
  void barrier();

  // Frees every rank that waits: this rank cannot go on, for this reason (a sentence). Any thread may call it. The
  // first failure is kept, so it does nothing after one.
  virtual void abort(const std::string& reason) noexcept = 0;
  // What abort() has the ranks throw.
  static RankFailure gave_up(int rank, const std::string& reason);
  // The same ranks again, for calls of another thread; itself a collective.
  virtual std::unique_ptr<Communicator> duplicate() = 0;
  // Cuts the ranks into groups of `size` consecutive ones, which divides their number, and returns this rank's group,
  // in which ranks count from 0. Groups make their calls independently of each other; a failure is everyone's, and
  // names ranks as the run does. Itself a collective of all ranks.
  std::unique_ptr<Communicator> split(int size);

  // In seconds. One limit holds for a communicator and its duplicates, on this rank; whoever waits follows its changes.
  // Any thread may ask and set it.
  double time_limit() const { return std::max(least_time_limit(), time_limit_->load()); }
  void set_time_limit(double seconds) { *time_limit_ = seconds; }
  // This communicator alone waits at least so long.
  double least_time_limit() const { return least_time_limit_; }
  void set_least_time_limit(double seconds) { least_time_limit_ = seconds; }

 protected:
  Communicator(const RankPlace& place, double time_limit)
      : place_(place), time_limit_(std::make_shared<std::atomic<double>>(time_limit)) {}
  // A duplicate of `of`, or one for some of its ranks.
  struct Duplicate {};
  Communicator(Duplicate, const Communicator& of) : Communicator(Duplicate{}, of, of.place_) {}
  Communicator(Duplicate, const Communicator& of, const RankPlace& place)
      : place_(place), time_limit_(of.time_limit_), least_time_limit_(of.least_time_limit()) {}
  // Makes the communicator of a group, whose place is `place`.
  virtual std::unique_ptr<Communicator> make_group(const RankPlace& place) = 0;

  // Sends send[r] to each other rank r and receives receive[r] from it; both have size() entries, of which this rank's
  // own is ignored, and the ranks agree on their lengths. `what` names the collective in errors.
  using Sent = std::span<const std::span<const std::byte>>;
  using Received = std::span<const std::span<std::byte>>;
  virtual void exchange(const char* what, Sent send, Received receive) = 0;

  // The text of this failure, so that every transport uses the same words. Ranks as the run counts them.
  static RankFailure lost(std::span<const int> ranks, const char* what, double seconds);

 private:
  void gather_bytes(std::span<const std::byte> own, std::span<const std::int64_t> counts, std::size_t element,
                    std::span<std::byte> all);
  template <class T>
  void sum_of_all(std::span<T> values);
  template <class T>
  void sum_of_slices(std::span<const T> values, std::span<const std::int64_t> counts, std::span<float> own);

  const RankPlace place_;
  const std::shared_ptr<std::atomic<double>> time_limit_;
  std::atomic<double> least_time_limit_ = 0;
};

// The only rank of a run.
std::unique_ptr<Communicator> make_single_communicator();
// The first of `size` ranks, of which the others are not there: whoever asks what a rank will allocate is told of its
// place, and collectives that move data are a Bug.
std::unique_ptr<Communicator> make_dry_communicator(int size);

}  // namespace so
