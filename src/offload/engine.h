// The offload engine: weights and gradients on the device, fp32 master weights and AdamW moments where each bucket's
// owner keeps them, and the step that brings them together bucket by bucket.
//
// The device updates what it owns in place, on the stream that computed the gradients, after the verdict. The host's
// buckets are updated by a thread of their own beside the device's work (host_optimizer.h): as soon as a gradient is
// complete, ahead of the verdict, or after it, under the next forward pass, as a policy chooses (update_policy.h). The
// next forward pass waits for the buckets of a unit only. Neither owners nor policy, bucket size or number of threads
// change a bit of the result.
//
// The calls of a step, by one thread, in this order. Work on the device is enqueued only; "blocks" says for what the
// thread itself waits.
//   begin_step()
//   for each micro-batch, before the last one begin_last_micro_batch():
//     forward, unit by unit:   require_weights()    blocks until the host has sent the unit's weights of the last step
//                              work that reads weight(), release_weights()
//     backward, last first:    require_weights()
//                              require_gradients()  blocks until the host has read the unit's gradient of the last step
//                              work that writes gradient(), release_weights(), gradients_ready()
//   finish_step()              blocks until the device has run the passes, and returns the verdict; updates go on
// Evaluations between steps call require_weights() and release_weights() alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/number_formats.h"
#include "base/thread_pool.h"
#include "base/weight_piece.h"
#include "offload/adamw_steps.h"
#include "offload/device_optimizer.h"
#include "offload/device_waits.h"
#include "offload/engine_settings.h"
#include "offload/exchange.h"
#include "offload/host_optimizer.h"
#include "offload/memory/frozen_weights.h"
#include "offload/memory/host_gradients.h"
#include "offload/memory/host_link.h"
#include "offload/memory/optimizer_state.h"
#include "offload/memory/parameter_source.h"
#include "offload/memory/unit_gradients.h"
#include "offload/memory/unit_weights.h"
#include "offload/pass_times.h"
#include "offload/save_gate.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/update_policy.h"
#include "offload/step_gradients.h"
#include "offload/update_chooser.h"
#include "offload/verdict.h"
#include "optim/adamw.h"
#include "optim/engine_ops.h"
#include "ranks/communicator.h"

namespace so {

// Counts the engine's work, for the log and for tests that must know that a path really ran. Totals since construction.
struct EngineCounters {
  std::int64_t steps = 0, skipped_steps = 0, clipped_steps = 0;
  std::int64_t committed_buckets = 0, discarded_buckets = 0;
  std::int64_t device_updates = 0;  // of the committed buckets, those the device updated
  std::int64_t streamed_units = 0;  // copies of a unit's weights from where they stream
  std::int64_t gathered_units = 0;  // gathers of a unit's weights for a use
  std::int64_t sums_brought = 0;    // units whose sum of gradients came back for another micro-batch
  double seconds = 0;               // that passed; those of `host` add up to them, unless the host owns nothing
  HostCounters host;
  WaitSeconds device_waits{};  // of the device, by what it waited for; without those of the step under way
};

class OffloadEngine final : public WeightSource, public GradientSink {
 public:
  // `ranks`: those that train the same model on other micro-batches; all make the same calls in the same order, but for
  // those that read, write and place state. Where units are gathered, or gradients move, that holds for each pass: a
  // rank that has nothing to compute runs an idle one (idle_micro_batch.h). With several ranks each keeps and updates
  // its own slice of every bucket (exchange.h), whose gradients are added up in fp32 (NumberFormats::rank_sums).
  // `host_pool` runs AdamW. `policy`: how the overlapped schedule goes about it; null: make_adaptive_policy(). All
  // references must outlive the engine. One thread at a time calls, but for the save (below), with one stream for the
  // model's work.
  OffloadEngine(Device& device, ThreadPool& host_pool, Communicator& ranks, const ParameterLayout& layout,
                const EngineSettings& settings, std::unique_ptr<UpdatePolicy> policy = nullptr);
  // The compute stream must be idle or gone: its work may use the engine's memory.
  ~OffloadEngine() override = default;

  // WeightSource
  void require_weights(int unit, Stream& stream) override;
  void release_weights(int unit, Stream& stream) override;
  Tensor weight(int first, int count = 1) const override { return weights_.on_device().weight(first, count); }

  // GradientSink
  void require_gradients(int unit, Stream& stream) override;
  Target gradient(int first, int count = 1) override;
  void gradients_ready(int unit, Stream& stream) override;

  // Begins a step. The device's waits since the last verdict were an evaluation's, and are not counted.
  void begin_step();
  // Says that the next micro-batch is the last of its optimizer step: its gradients complete the step's. `lr` is the
  // step's learning rate. `update_number` counts updates from 1, this one included, for AdamW's bias correction.
  void begin_last_micro_batch(double lr, std::int64_t update_number);
  // The same with an update for each parameter. Those that have none need no gradient in this step, and those that have
  // one must have got it when the step is finished. Goes with one rank.
  void begin_last_micro_batch(std::span<const ParameterUpdate> updates);
  // Undoes begin_last_micro_batch(): the micro-batch is not the last one after all, or the updates are to be different.
  // Weights become those before it again; gradients stay, and further ones are added to them. Call
  // begin_last_micro_batch() again later, and then gradients_ready() for all units. Blocks until the host has undone
  // its work. Requires one rank, and gradients that do not move.
  void reopen_step();
  // Call it before a step. Marks a host-owned unit, such as an embedding, of which a forward pass needs some rows first
  // and the whole last or never. From that step on the unit is updated after the verdict, behind all others, and
  // preview_rows() computes those rows' weights. Requires weights in the caller's memory.
  void set_late(int unit);
  // Between a step's verdict and anything that requires a late unit's weights. Computes those of some rows of such a
  // unit's parameter, as HostOptimizer::preview_rows() does. Returns false, having done nothing, if the unit's update
  // may have begun already: then it must be required.
  bool preview_rows(int parameter, std::int64_t width, std::span<const std::int64_t> rows, const void* gradients,
                    void* weights);
  // Where the gradient of a host-owned unit's parameter lies on the device, from its last step's until the next one.
  Tensor last_gradient(int parameter) { return gradients_.places().view(parameter); }
  // Forgets the gradients of a step whose last micro-batch has not begun, so that the next ones replace them.
  void drop_gradients();
  // After the last micro-batch has been enqueued on `compute`: waits for its gradients, and returns their norm, NaN if
  // one is not finite. Nothing is decided yet: finish_step() follows, or reopen_step(). Goes with one rank.
  double gradient_norm(Stream& compute);
  // The same, but returns the statistics behind it, by parameter; zero for those without an update.
  std::vector<GradStats> gradient_statistics(Stream& compute);
  // After the last micro-batch has been enqueued on `compute`: waits for its gradients, takes the verdict, and sees
  // it carried out. Updates, and weights on their way to the device, may still run on return: require_weights(),
  // require_gradients() and read_state() wait for what they need. After an error, of the device's work or the host's,
  // no step can be finished: what waits for a host-owned bucket throws the first one.
  // `of_all`: if the caller's model is spread over several engines of one rank each, the statistics of all their
  // gradients, in the same order for each engine, so that all reach the same verdict. Its non_finite_parameter is then
  // an index into `of_all`. Empty: this engine has all gradients.
  Verdict finish_step(Stream& compute, std::span<const GradStats> of_all = {});

  // From the next verdict on; 0: no clipping.
  void set_max_grad_norm(double norm) { settings_.max_grad_norm = norm; }

  // Between steps: work that follows on `stream` comes after all that the last step's updates do on the device.
  void require_updates(Stream& stream);

  const ParameterLayout& layout() const { return layout_; }
  Communicator& ranks() const { return ranks_; }  // as given: for collectives of the engine's thread
  const NumberFormats& formats() const { return settings_.formats; }
  // Whether every pass is a collective of the ranks, evaluations included.
  bool gathers_weights() const { return settings_.placement.gathered() > 0; }

  // ---- Optimizer state, whoever owns it. Between steps, or by a save (see gate()), beside which the engine's thread
  // may read; else one thread at a time. With several ranks, this rank's slices alone: what lies between them is left
  // out. Frozen parameters have weights, which are read and written as their master weights are, and no moments, which
  // are left out. ----

  // Returns the elements of these slices, in order, neighbours joined, frozen parameters included; with one rank that
  // is all of the flat range.
  std::vector<Range> own_ranges() const;
  // Calls body(begin, values) for pieces of `range` of the flat range, in order; the values, which begin at element
  // `begin`, hold during the call. Padding belongs to the range. Host-owned state is given as it lies.
  using ReadBody = std::function<void(std::int64_t begin, std::span<const float> values)>;
  void read_state(StateArray array, Range range, const ReadBody& body);
  // Calls fill(begin, values) for pieces of `range`, whose contents are replaced. Weights follow by upload_weights().
  using WriteBody = std::function<void(std::int64_t begin, std::span<float> values)>;
  void write_state(StateArray array, Range range, const WriteBody& fill);
  // Loading: weights come in pieces, in these forms where the file has them in `stored`. Each becomes master weights
  // and weights in their own format; upload_weights() is not needed then. Enqueues on `stream`, and writes host-owned
  // state itself. When all pieces are placed the caller synchronizes the stream. With several ranks it is enough that
  // each places its own_ranges(), if gather_placed() follows.
  WeightForms forms(DType stored) const;
  void place_weights(Stream& stream, const WeightPiece& piece);
  // The same for moments, in the form they are kept in; no collective follows.
  WeightForms moment_forms() const;
  void place_moments(Stream& stream, StateArray array, const WeightPiece& piece);
  // Where this rank's slice of a bucket is kept, if a loader may write there itself: in host memory, in the form that
  // is not null. Pieces that lie there already are placed without a copy.
  struct StatePlace {
    Range range;
    float* wide = nullptr;
    bf16* narrow = nullptr;
  };
  // Returns the places of all buckets that have state and are not empty, in order. Waits until the last update has
  // written them.
  std::vector<StatePlace> state_places(StateArray array);
  // Brings the weights that each rank has placed to all of them. Waits; with one rank there is nothing to do. `compute`
  // is the stream of the model.
  void gather_placed(Stream& compute);
  // After master weights were written: rounds them into the device's weights. Waits. `compute` is the stream of the
  // model.
  void upload_weights(Stream& compute);

  // A background save calls begin_save() between steps on the engine's thread, which waits for the updates under way;
  // then it reads buckets in order from its own, calling gate().passed() after each and gate().end() at last.
  void begin_save();
  SaveGate& gate() { return gate_; }
  std::span<const Bucket> buckets() const { return buckets_; }
  EngineCounters counters() const;
  // Running means, 0 of what has not been measured yet.
  StepTimes measured_times() const { return chooser_.times(); }

 private:
  // Of the step under way.
  struct Step {
    bool last_micro_batch = false;
    bool updates_chosen = false;     // of the last micro-batch
    bool has_statistics = false;     // of its gradients
    std::int64_t micro_batches = 0;  // whose backward passes are enqueued
    double lr = 0;
    std::int64_t update_number = 0;
    std::vector<ParameterUpdate> updates;  // empty: the same for all
  };
  void begin_last();
  // Once in a step's last micro-batch, by its first gradient.
  void choose_updates();
  // This step's updates, whose gradients are multiplied by `clip`.
  AdamWSteps steps(float clip) const;
  // Whether the parameter is to have a gradient in this step.
  bool is_updated(int parameter) const {
    return layout_.parameter(parameter).trained &&
           (step_.updates.empty() || step_.updates[static_cast<std::size_t>(parameter)].update_number > 0);
  }
  // The bucket's gradient is being written.
  void land(Bucket& bucket);
  // The unit's gradients are the step's, on `sums` those of all ranks: takes their statistics and gives them to their
  // owners.
  void complete_last(int unit, Stream& stream, Stream& sums);
  // Waits for the statistics of all gradients, unless they were taken.
  void take_statistics(Stream& compute);
  std::vector<GradStats> statistics() const;  // by parameter
  Verdict take_verdict(Stream& compute, std::span<const GradStats> of_all);
  void measure(bool clipped_or_skipped, std::int64_t micro_batches);
  // Work that follows on `stream` finds this rank's slice of the bucket's weights as its owner has updated it. Waits
  // for the host to send it.
  void require_sent(const Bucket& bucket, Stream& stream);
  // Whether the final weights of all that the host owns of the unit have been sent.
  bool has_final_weights(int unit);
  void cast_masters(int unit, Stream& stream);
  UnitGathers unit_gathers();

  Device& device_;
  const std::unique_ptr<EngineOps> ops_;
  Communicator& ranks_;
  const ParameterLayout& layout_;
  EngineSettings settings_;

  std::vector<Bucket> buckets_;
  const UnitBuckets unit_buckets_;
  UnitWeights weights_;
  UnitGradients gradients_;
  OptimizerState device_state_;
  SaveGate gate_;
  Step step_;
  const HostClock::Clock::time_point made_ = HostClock::Clock::now();
  EngineCounters counters_;

  // The device's time for the policy.
  DeviceWaits waits_;
  PassTimes passes_;

  HostLink link_;
  HostGradients host_gradients_;
  const std::unique_ptr<Exchange> exchange_;
  StepGradients step_gradients_;
  FrozenWeights frozen_;
  DeviceOptimizer device_optimizer_;
  HostOptimizer host_;  // its thread uses all the others
  UpdateChooser chooser_;
};

}  // namespace so
