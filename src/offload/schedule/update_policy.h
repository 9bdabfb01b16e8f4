// Chooses what the host does with each of its buckets, and when, anew for every step from measured times. No choice
// changes a bit of the result; they differ in time and memory.
//
//              ahead of the verdict             after it, if the step stands as it was    traffic, bytes a parameter
//   speculate  new state beside the old         nothing: the new state is adopted         28, and 12 of memory
//   preview    new weights only                 the state follows, any time before        16 + 26
//              (they do not change when the     the next gradient
//              state follows)
//   leave      nothing                          After::in_place: all at once              28
//                                               After::weights_first: weights, and the    16 + 26
//                                               state follows
// (bf16 gradients and weights, fp32 state.) A clipped step voids what was done ahead, and then all go one of the two
// ways of the left ones. What is left must be done, lowest first, before the next forward pass reaches it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace so {

enum class Ahead : std::uint8_t { leave, speculate, preview };
enum class After : std::uint8_t { in_place, weights_first };

// For each host-owned bucket, lowest first. A bucket that is to be speculated when no place is spare is left.
struct UpdateChoice {
  std::vector<Ahead> ahead;
  std::vector<After> after;  // of those left, if the step stands as it was
  std::vector<After> redo;   // of all, if it stands clipped
};

// Seconds of a step, each 0 if it is not known.
struct StepTimes {
  double update_seconds = 0, preview_seconds = 0;  // an element
  double link_seconds = 0,
         link_preview_seconds = 0;  // an element whose state the device updates over the link; 0: it updates none
  double stream_seconds = 0;        // an element whose weights stream: their way to the device
  double forward_seconds = 0, backward_seconds = 0;  // from verdict to the last micro-batch's first gradient, and from
                                                     // there to verdict; of the device, without its waits for the host

  // These, and of `others` those that are not known here.
  StepTimes or_else(const StepTimes& others) const;
  // Whether no two differ by more than this part of the larger.
  bool is_within(double part, const StepTimes& others) const;
};

// The engine's knowledge in a step's last micro-batch, where its forward pass first waits for the host, or when its
// first gradient comes. Times are running means of what was measured, before that as planned, if there is a plan.
struct UpdateFacts : StepTimes {
  std::span<const std::int64_t> elements;  // of the host-owned buckets, lowest first
  std::span<const double> needed, left;    // of each: BucketShares
  // Of each, whether it is a late one (HostSchedule::set_late()), which the policy cannot choose about; empty: none is.
  std::span<const std::uint8_t> late;
  // How many elements of each have weights that stream from host memory, one after another in the order in which a
  // forward pass needs them; empty: none do.
  std::span<const std::int64_t> streamed;
  std::int64_t spare_places = 0;

  bool is_late(std::size_t i) const { return !late.empty() && late[i] != 0; }
  std::int64_t streamed_elements(std::size_t i) const { return streamed.empty() ? 0 : streamed[i]; }
  std::int64_t micro_batches = 1;
  double clip_rate = 0;         // share of recent steps that were clipped or skipped
  bool awaits_updates = false;  // the next forward pass begins when all weights are there
  bool previews = true;         // else weights are not made ahead of their state (HostSchedule::set_from_masters())

  double first_forward_seconds() const;
};

// Returns how long the first micro-batch's forward pass takes, which needs the new weights, as its backward pass needs
// the gradients' memory. Both arguments are as in StepTimes. All micro-batches take the same time.
double first_forward_seconds(double forward_seconds, double backward_seconds, std::int64_t micro_batches);

class UpdatePolicy {
 public:
  virtual ~UpdatePolicy() = default;
  virtual UpdateChoice choose(const UpdateFacts& facts) = 0;
};

// Nothing ahead of the verdict, everything in place after it.
std::unique_ptr<UpdatePolicy> make_synchronous_policy();

// Takes the choice with the shortest step, from a few that it simulates with the facts (step_time.h). It speculates as
// many buckets as there are spare places. If these are not all, it leaves the highest, which are in time for the
// forward pass anyway, speculates those below them, and previews as many of the lowest as pay. After the verdict it
// lets weights go first for as many as pay, of those left and, in a clipped step, of all. If steps are clipped so often
// that work ahead of the verdict costs more than it saves, it does nothing ahead.
std::unique_ptr<UpdatePolicy> make_adaptive_policy();

}  // namespace so
