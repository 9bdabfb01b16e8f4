// How long a step takes when the host treats its buckets by a given choice: the rules of host_schedule.h, played
// against measured times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "offload/schedule/update_policy.h"

namespace so {

// Parts of an update, of what is not measured for itself.
// State that follows reads and writes all that an update does but the weights: 26 bytes of 28 (18 of 20 with bf16
// moments).
inline constexpr double follow_share = 0.92;
// A preview's time, until one has been measured.
inline constexpr double preview_share = 0.6;
// Weights alone are read far more than written, and reads reach this part of the rate of an update's traffic: in steps
// of Phi-4 and GPT-OSS-20B on an H200 they took 0.8 and 0.86 of an update's time, where their bytes say 0.57 and 0.6.
// With nothing beside them bench_adamw found 0.64 and 0.69.
inline constexpr double reading_share = 0.7;

// The verdict that every step is assumed to get.
enum class Verdicts : std::uint8_t { stand, clip };

// Plays choices against the same facts, of which it keeps what all of them need. `facts` must have been measured:
// update_seconds, forward_seconds and backward_seconds above 0; they need not outlive the constructor. One thread at a
// time.
class StepTimer {
 public:
  explicit StepTimer(const UpdateFacts& facts);

  // Returns the seconds from verdict to verdict once steps repeat. The link is taken to keep up, but for weights that
  // stream. `choice` is for as many buckets as the facts.
  double seconds(const UpdateChoice& choice, Verdicts verdicts);

  // Returns the seconds of the device's passes, which no choice makes shorter.
  double least_seconds() const { return least_; }

 private:
  // Seconds of an update, by who does it.
  struct Work {
    double host = 0, link = 0;
  };
  // What a step takes over from the one before: when the host and the link are free, and the lowest bucket that was
  // worked on ahead of the verdict (or the count).
  struct Carried {
    double host = 0, link = 0;
    std::size_t ahead_from = 0;
    bool operator==(const Carried&) const = default;
  };

  // The part of a backward pass that gradients of the buckets [begin, end), a unit's, come from.
  struct Pass {
    std::size_t begin = 0, end = 0;
    double seconds = 0;
  };

  double next(const UpdateChoice& choice, bool clip);
  void after_the_verdict(const UpdateChoice& choice, bool clip);
  double forward() const;
  double after_pass(const Pass& pass, double now);
  double first_backward(double now);
  double backward(const UpdateChoice& choice, double now);
  double by_first(double ready, const Work& work);
  bool is_late(std::size_t i) const { return !late_.empty() && late_[i] != 0; }
  double first_free() const;

  std::size_t count_;
  bool has_link_, awaits_updates_;
  std::int64_t micro_batches_;
  double first_forward_, backward_, least_ = 0;
  std::vector<Work> updates_, follows_, previews_;  // by bucket
  std::vector<std::size_t> by_need_;                // buckets, those first that the forward pass needs first
  std::vector<double> needed_;                      // by bucket: seconds of the forward pass before it
  std::vector<Pass> passes_;                        // in their order
  std::vector<std::uint8_t> late_;                  // UpdateFacts::late
  std::vector<double> streams_;                     // by bucket: seconds of the link until its weights are there
  double backward_rest_ = 0;

  Carried carried_;
  // These are by bucket, in seconds since the last verdict.
  std::vector<double> weights_here_, gradient_free_, landed_;
};

// The same for a single choice.
double step_time(const UpdateFacts& facts, const UpdateChoice& choice, Verdicts verdicts);

}  // namespace so
