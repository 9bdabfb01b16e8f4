// Plays steps of a simulated run one after the other: its lanes, and a clock that goes from one lane's end to the next
// (plan/simulate/simulator.h says what is modelled). A file has the work of each lane.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "offload/schedule/host_schedule.h"
#include "offload/schedule/pass_shares.h"
#include "offload/schedule/placement.h"
#include "offload/schedule/step_time.h"
#include "offload/schedule/update_policy.h"
#include "plan/simulate/device_program.h"
#include "plan/simulate/host_bandwidth.h"
#include "plan/simulate/host_pieces.h"
#include "plan/simulate/simulator.h"

namespace so {

class StepPlay {
 public:
  StepPlay(SimulatedRun run, std::unique_ptr<UpdatePolicy> policy);  // as Simulator's

  SimulatedStep step();
  SimulatedTimeline timeline();

  bool choice_is_new() const { return choice_is_new_; }  // in the last step
  const HostCounters& counters() const { return schedule_.counters(); }
  std::size_t pieces() const { return pieces_.size(); }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  static constexpr double forever = std::numeric_limits<double>::infinity();

  // Counts places without memory behind them.
  class CountedPlaces final : public StatePlaces {
   public:
    explicit CountedPlaces(std::int64_t count) : spare_(count) {}
    bool has_spare() const override { return spare_ > 0; }
    int take_spare() override {
      --spare_;
      return 0;
    }
    void give_back(int) override { ++spare_; }
    void adopt(int, const Bucket&) override { ++spare_; }

   private:
    std::int64_t spare_;
  };

  struct Lane {
    bool busy = false;
    double all = 0, left = 0;  // bytes
    double began = 0;          // below 0: in the step before
    int item = -1;             // piece or unit
    SimulatedSpan span;        // what it is
  };
  std::array<Lane*, bandwidth_users> lanes() { return {&host_, &to_host_, &to_device_, &link_}; }
  // Their `all` and `left` are seconds.
  std::array<Lane*, 2> collectives() { return {&reduce_, &gather_}; }

  // ---- Time (step_play.cpp) ----
  void begin_step();
  // Tries each lane once, in this order; whether any of them took up work.
  bool start_what_can();
  // To the next moment at which something is done.
  void advance();
  void note(SimulatedSpan span, double began);  // until now
  bool has_final_weights(int unit) const;
  const Placement& placement() const { return run_.placement; }
  bool streams(int unit) const { return is_streamed(placement().unit(unit).weights); }

  // ---- The device (play_device.cpp) ----
  // Whether the device can go on; if not, `waits_for_` says for whom it waits.
  bool may_start(const DeviceOp& op);
  // The slot that the unit's gradient leaves when it moves; -1 of other units.
  int slot_of(int unit) const { return turns_.moving[at(unit)]; }
  // The place of the gradient of a unit in slices, one of gradient_slots; -1 of other units.
  int reduced_slot(int unit) const { return placement().unit(unit).sliced ? turns_.gradients[at(unit)] : -1; }
  bool start_device();
  void end_wait(WaitReason reason);
  void finish_device();
  // The unit's gradient is complete, of all ranks.
  void landed(int unit);

  // ---- The host: the policy's choice, and AdamW (play_host.cpp) ----
  std::int64_t count_places() const;
  StepTimes times() const;
  // From what the last step's units were needed and complete at.
  void measure_shares();
  void ask();
  UpdateChoice choose(const StepTimes& measured) const;
  double bytes_of(HostTask task) const;  // of the host's memory, an element
  bool start_host();
  void finish_host();

  // ---- The link (play_link.cpp) ----
  double weigh(int piece, double bytes) const { return bytes * pieces_.elements(piece); }
  void fetch(int piece, double element_bytes);
  bool start_to_host();
  Traffic traffic(int unit) const;
  // Returns how many bytes of a use may have come by now.
  double may_stream(const StreamUse& use) const;
  bool start_to_device();
  void start(Lane& lane, int item, double bytes, SimulatedSpan span);
  void finish_to_host();
  void finish_to_device();

  // ---- Sums of gradients in host memory (play_sums.cpp) ----
  // `first` and `last`: whether it is of the step's first, or last, micro-batch.
  // Whether the unit's slot has what its backward pass, or its reduction, is to write to or to add to.
  bool slot_is_ready(int unit, bool first) const;
  // The unit's gradient leaves its slot: what has the slot next may come.
  void leave_slot(int unit, bool first, bool last);
  // Whether the piece that comes next may: it has been stored, and its place is free.
  bool sum_may_come() const;
  void start_sum();

  // ---- State over the link (play_link.cpp) ----
  bool start_over_link();
  void finish_over_link();

  // ---- Collectives (play_collectives.cpp) ----
  // Whether the unit's master weights go to the device for each use, or the rank's slice of them for each gather.
  bool sends_masters(int unit) const {
    const ResidencyKind weights = placement().unit(unit).weights;
    return placement().on_host(unit) &&
           (weights == ResidencyKind::streamed_from_masters || weights == ResidencyKind::gathered_from_masters);
  }
  bool start_reduce();
  bool start_gather();
  void start_collective(Lane& lane, int unit, double seconds, SimulatedSpan span);
  void finish_reduce();
  void finish_gather();
  bool reducing() const { return !reductions_.empty(); }

  const SimulatedRun run_;
  const int most_questions_;
  const std::unique_ptr<UpdatePolicy> policy_;
  HostPieces pieces_;
  const std::int64_t place_count_;
  CountedPlaces places_;
  HostSchedule schedule_;
  const Turns turns_;
  const bool moves_;             // gradients, as they come
  const DeviceProgram program_;  // of a step
  const HostBandwidth bandwidth_;
  const bool several_ranks_;

  double now_ = 0;  // seconds since the last verdict
  SimulatedStep step_;
  std::vector<SimulatedSpan>* spans_ = nullptr;

  Lane device_, host_, to_host_, to_device_, link_, reduce_, gather_;
  double device_ends_ = 0;
  std::size_t next_op_ = 0;
  WaitReason waits_for_ = WaitReason::host;
  bool for_collective_ = false;  // that wait
  double wait_began_ = -1;
  // Of this micro-batch: seconds of waits for weights that are brought for each use and for places of gradients that
  // move or are in slices, those of them for gradients that move and for collectives, and bytes that were copied.
  double micro_waited_ = 0, micro_for_moving_ = 0, micro_for_collectives_ = 0, micro_copied_ = 0;
  struct GradientSlot {
    int unit = -1;         // whose gradient is there
    int to_come = 0;       // of its sum, the pieces that are not there yet
    bool arrives = false;  // it is a sum that was brought for the unit's next backward pass
  };
  std::array<GradientSlot, std::max(gradient_slots, slice_slots)> slots_;

  HostTask task_ = HostTask::none, link_task_ = HostTask::none;
  HostTime host_idle_ = HostTime::gradient;  // what it waits for, unless it works
  std::deque<int> in_hand_;
  std::vector<bool> fetched_;    // by piece: its gradient is where the host can read it
  std::vector<int> on_the_way_;  // by piece: copies of weights
  struct Fetch {
    int piece = -1;
    double element_bytes = 0;
  };
  std::deque<Fetch> fetches_;
  struct Ready {
    int piece = -1;
    double since = 0;
  };
  std::deque<Ready> sends_;
  struct Sum {
    int piece = -1;
    int after = -1;  // the piece that has its place, which leaves; -1: it is free
    double since = 0;
  };
  std::deque<Sum> sums_;  // in the order in which they come
  bool bringing_sum_ = false;
  int uses_done_ = 0, uses_there_ = 0;
  bool streaming_ = false;
  double stream_ready_ = forever;
  double stream_sent_ = 0;  // bytes of the use that comes next
  struct Reduction {
    int unit = -1;
    bool first = false, last = false;  // of the step's micro-batches
  };
  std::deque<Reduction> reductions_;                      // in order; the first is under way if the lane is busy
  std::array<bool, gradient_slots> reduced_slot_busy_{};  // until the gradient in it is reduced
  int gathers_done_ = 0, turns_done_ = 0;                 // of the program's; uses of gathered units
  // These say of the next gather since when its masters may come, whether they come, and whether they are there.
  double masters_since_ = forever;
  bool bringing_masters_ = false, masters_here_ = false;

  // The figures that the engine would measure.
  HostPace pace_{follow_share}, link_pace_{1};
  double streaming_seconds_ = 0, streaming_elements_ = 0;  // of this step's forward passes
  double stream_seconds_ = 0;                              // an element, of the last step in which any streamed
  double forward_seconds_ = 0, backward_seconds_ = 0, phase_ = 0;
  std::vector<double> needed_at_, landed_at_;  // by unit: `phase_` then; below 0: not yet
  PassShares shares_;
  bool first_gradient_ = false, asked_ = false, choice_is_new_ = false;
  int times_asked_ = 0;  // in all steps
  UpdateChoice choice_;
  std::vector<std::int64_t> streamed_elements_;  // by piece
  StepTimes asked_with_;
  PassShares asked_shares_;
};

}  // namespace so
