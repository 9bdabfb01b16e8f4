// Decides what is done with the host's buckets, and when, without threads, streams or a clock. The engine's
// HostOptimizer carries these decisions out on a machine (host_optimizer.h), the planner's simulator in virtual time
// (plan/simulate/simulator.h). Two may work on them: the host, and the device, to which a bucket's state then travels
// over the link and back (Updater). The most urgent work comes first:
//
//   1. after the verdict, adopting speculated state of which weights are made (set_from_masters()); then what the next
//      forward pass waits for: updates and redone updates, and old weights that a skipped step must put back; lowest
//      bucket first, and late ones (set_late()) behind the others
//   2. adopting the rest, then state that must follow weights sent earlier; highest bucket first, whose next
//      gradient comes first
//   3. ahead of the verdict, buckets whose gradients are complete, as the step's UpdateChoice says
//
// Both take from these, the one that is free first. Adopting and putting back, which need no update, are the host's
// alone.
//
// One thread at a time; the caller locks.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "offload/schedule/bucket.h"
#include "offload/schedule/host_time.h"
#include "offload/schedule/state_places.h"
#include "offload/schedule/update_policy.h"

namespace so {

// Totals since construction, of host-owned buckets.
struct HostCounters {
  std::int64_t speculated = 0, previewed = 0;                    // ahead of the verdict
  std::int64_t committed_ahead = 0;                              // of those, what the verdict let stand
  std::int64_t updated_in_place = 0, updated_weights_first = 0;  // after the verdict
  std::int64_t redone = 0;                                       // of the latter two, void work done again
  std::int64_t restored = 0;                                     // old weights put back after a skipped step
  std::int64_t voided = 0;                                       // work ahead of the verdict that a clipped step voids
  std::int64_t committed = 0, discarded = 0;                     // of steps that stood and that were skipped
  std::int64_t over_link = 0;  // of all updates, and of state that followed, those that the device made
  HostSeconds seconds{};       // of the host's thread, by what it does
};

enum class HostTask : std::uint8_t { none, speculate, preview, update, weights_first, follow, adopt, restore };
std::string_view name_of(HostTask task);

// Who works on a bucket that the host owns: the host's threads, or the device, to which its state travels.
enum class Updater : std::uint8_t { host, link };

// The host's mean seconds for an element since restart(). Until something has been added again, the mean of before
// restart() stays; 0 at first. The policy is told these for each step (UpdateFacts).
class HostPace {
 public:
  // `follow`: what state that follows takes of an update's time.
  explicit HostPace(double follow) : follow_(follow) {}
  void restart();
  void add(HostTask task, double seconds, std::int64_t elements);
  double update_seconds() const { return updates_.value; }
  double preview_seconds() const { return previews_.value; }  // and of weights that go first

 private:
  struct Mean {
    double seconds = 0, elements = 0, value = 0;
  };
  double follow_;
  Mean updates_, previews_;
};

class HostSchedule {
 public:
  // `buckets`: the engine's, of all owners; this object alone moves the host-owned ones. Both must outlive it.
  HostSchedule(std::span<Bucket> buckets, StatePlaces& places);

  // Buckets that the host owns, lowest first, as indices; and their sizes.
  std::span<const int> owned() const { return owned_; }
  std::span<const std::int64_t> elements() const { return elements_; }

  // ---- The device's side ----
  // The gradients of the next step's last micro-batch are about to come. Work left over from the step before follows
  // the new choice too; no choice changes a result.
  void begin_step(UpdateChoice choice);
  // `complete`, of any owners, in the order in which their gradients go to the host: the highest first, as the forward
  // pass needs it last, and behind all others those with which nothing is done ahead of the verdict.
  std::vector<Bucket*> landing_order(std::span<Bucket> complete) const;
  void land(Bucket& bucket);    // a gradient is being written
  void landed(Bucket& bucket);  // it is complete, or will be by when it is read
  // The verdict: whether the step stands, and as what was done ahead of it took for granted.
  void decide(bool stands, bool unclipped);
  // Further gradients of this step will come: what was done ahead is undone as if the step were skipped, of buckets
  // whose gradients were complete. Nothing is left of the step before (nothing_decided_left()).
  void reopen();
  bool nothing_decided_left() const;
  // From the next gradient on the bucket is a late one: nothing of it is done ahead of the verdict, and after that it
  // waits until open_late(), and then comes behind all others that are due.
  void set_late(const Bucket& bucket) { entry(bucket.index()).late = true; }
  bool is_late(const Bucket& bucket) const { return entry(bucket.index()).late; }
  void open_late() { late_open_ = true; }
  // The bucket's weights are made of its master weights on the device: they are final when the state is, so nothing of
  // it is previewed, and its speculated state is adopted before anything else is done.
  void set_from_masters(const Bucket& bucket) { entry(bucket.index()).from_masters = true; }
  // Whether late buckets have been decided on, and none can be taken yet.
  bool late_closed() const { return !late_open_; }

  bool has_final_weights(const Bucket& bucket) const;  // they have been sent; not to be asked ahead of the verdict
  bool is_decided(const Bucket& bucket) const { return entry(bucket.index()).decided; }  // its gradient's verdict is in
  bool needs_no_gradient(const Bucket& bucket) const;  // another may be written over it
  bool has_final_state(const Bucket& bucket) const;    // that of the last verdict
  bool finished() const;                               // all is done but for weights on their way

  // ---- The host's side ----
  // Buckets in hand: one that is updated, one that is begun before the other is done, so that no thread waits between
  // them, and one whose gradient arrives meanwhile.
  static constexpr std::size_t hands = 3;
  // Takes the most urgent bucket that it can work on in hand; -1 if there is none.
  int take(Updater updater = Updater::host);
  // Why there was none for the host, while it has none in hand either.
  struct Idle {
    HostTime reason = HostTime::gradient;  // gradient, place or verdict
    int bucket = -1;                       // whose gradient could be used but for the reason; -1: none
  };
  Idle idle() const;
  // Returns the work to do on a bucket in hand. It may change until begin(), since the verdict may come.
  HostTask task_of(int index) const;
  HostTask begin(int index);  // it is being done from now on
  void complete(int index, HostTask task);
  int place_of(int index) const { return entry(index).place; }  // for the bucket's new state; -1: none

  // The counters' counts; their seconds are the caller's.
  HostCounters& counters() { return counters_; }
  const HostCounters& counters() const { return counters_; }

 private:
  // The facts about a host-owned bucket beside its state.
  struct Entry {
    bool decided = true;              // the verdict on its gradient is in
    bool in_hand = false;             // taken
    Updater updater = Updater::host;  // who took it last
    bool redo = false;                // its update replaces one that was void
    bool late = false, from_masters = false;
    int place = -1;  // spare place of its speculated state
  };

  int most_urgent(Updater updater);
  // The first that is due and that this one can update; -1: none.
  int first_due(std::set<int>& due, Updater updater);
  void make_due(int index) { (entry(index).late ? late_due_ : due_).insert(index); }
  void apply_verdict(Bucket& bucket);
  void give_back_place(Entry& entry);
  void leave(int index);
  void forget_ahead();
  std::size_t turn_of(int index) const { return static_cast<std::size_t>(turn_of_[static_cast<std::size_t>(index)]); }
  Bucket& bucket(int index) { return buckets_[static_cast<std::size_t>(index)]; }
  Entry& entry(int index) { return entries_[static_cast<std::size_t>(index)]; }
  const Entry& entry(int index) const { return entries_[static_cast<std::size_t>(index)]; }

  const std::span<Bucket> buckets_;
  StatePlaces& places_;
  std::vector<int> owned_;
  std::vector<int> turn_of_;  // by bucket: its index in owned_, -1 for others
  std::vector<std::int64_t> elements_;
  std::vector<Entry> entries_;  // by bucket
  UpdateChoice choice_;
  bool stands_ = true, as_speculated_ = true;  // of the last verdict
  bool late_open_ = true;
  std::set<int> due_, late_due_, adopting_first_, adopting_, owing_;
  std::deque<int> ahead_;  // in the order their gradients become complete
  // For idle(), which the simulator asks at every event: gradients before their verdict that are not in hand, of
  // buckets to be speculated and of others; how many there are before their verdict; and how many places are taken.
  std::set<int> without_place_, unwanted_;
  std::size_t undecided_ = 0, places_taken_ = 0;
  HostCounters counters_;
};

}  // namespace so
