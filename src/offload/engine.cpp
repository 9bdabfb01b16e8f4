#include "offload/engine.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"

namespace so {
namespace {

std::vector<std::int64_t> elements_of_units(const ParameterLayout& layout) {
  std::vector<std::int64_t> elements;
  for (int unit = 0; unit < layout.units(); ++unit) elements.push_back(layout.unit_range(unit).size());
  return elements;
}

}  // namespace

OffloadEngine::OffloadEngine(Device& device, ThreadPool& host_pool, Communicator& ranks, const ParameterLayout& layout,
                             const EngineSettings& settings, std::unique_ptr<UpdatePolicy> policy)
    : device_(device),
      ops_(make_engine_ops(device)),
      ranks_(ranks),
      layout_(layout),
      settings_(check_settings(settings, layout, ranks)),
      buckets_(shard_buckets(
          layout,
          make_buckets(layout, settings.placement.bucket_elements, settings.placement.units,
                       settings.caller.any_order || settings.placement.cuts_within_units(settings.formats),
                       block_elements(settings.formats.moments)),
          ranks, block_elements(settings.formats.moments))),
      unit_buckets_(layout, buckets_),
      weights_(device, layout, settings.formats.weights, settings.caller.weights, settings.placement, buckets_,
               {.final_weights = [this](int unit) { return has_final_weights(unit); },
                .cast_masters = [this](int unit, Stream& stream) { cast_masters(unit, stream); },
                .gathers = unit_gathers()}),
      gradients_(device, layout, settings.formats, settings.placement, buckets_),
      device_state_(device, layout, buckets_, settings.formats.moments),
      gate_(static_cast<int>(buckets_.size())),
      waits_(device),
      // The thread that moves state over the link is on the core where this one waits for the verdict; all others are
      // AdamW's.
      passes_(device, waits_, PassShares::by_elements(elements_of_units(layout)),
              settings.placement.over_link ? Waiting::yields : Waiting::spins),
      link_(device, buckets_, gradients_.own_dtype(), settings.formats.weights, settings.placement.cast,
            !settings.placement.moves()),
      host_gradients_(device, host_pool, buckets_, gradients_, link_, settings.placement.moves()),
      exchange_(make_exchange(device, *ops_, ranks, settings.collectives, layout, buckets_, weights_, gradients_,
                              block_elements(settings.formats.moments),
                              [this](const Bucket& bucket, Stream& stream) { require_sent(bucket, stream); })),
      step_gradients_(device, layout, settings.placement, buckets_, unit_buckets_, *exchange_, host_gradients_),
      frozen_(device, layout, buckets_, weights_),
      device_optimizer_(device, *ops_, layout, buckets_, device_state_, weights_, gradients_, gate_),
      host_(device, host_pool, layout, buckets_, weights_, host_gradients_, link_, settings.placement,
            settings.formats.moments, gate_),
      chooser_(settings_, layout, buckets_, host_, passes_, std::move(policy)) {
  if (!device.backed()) return;
  const auto stream = device.create_stream("clear");
  device_state_.clear(*stream);
  stream->synchronize();
}

void OffloadEngine::require_weights(int unit, Stream& stream) {
  WeightResidency& weights = weights_.of(unit);
  const std::span<Bucket> buckets = unit_buckets_.of(unit);
  // The model's stream itself has updated the buckets that the device owns; the host's thread sends those of the host.
  bool here = weights.here(unit), sent = true;
  for (const Bucket& bucket : buckets) {
    here = here && exchange_->whole(bucket);
    if (!bucket.on_host()) continue;
    here = here && host_.weights_here(bucket);
    sent = sent && host_.weights_sent(bucket);
  }
  passes_.need(unit, stream);
  if (!here) waits_.begin(stream, sent ? weights.reason() : WaitReason::host);
  if (!sent) choose_updates();
  for (const Bucket& bucket : buckets) {  // also if all are here: a copy that failed must stop this stream too
    if (!bucket.on_host()) continue;
    host_.require_weights(bucket, stream);
    weights.begin(common(bucket.range(), layout_.unit_range(unit)));
  }
  exchange_->gather(buckets, stream);
  weights.require(unit, stream);
  if (!here) waits_.end(stream);
  weights_.required(unit);
}

bool OffloadEngine::has_final_weights(int unit) {
  const std::span<Bucket> buckets = unit_buckets_.of(unit);
  return std::all_of(buckets.begin(), buckets.end(),
                     [&](const Bucket& bucket) { return !bucket.on_host() || host_.weights_final(bucket); });
}

void OffloadEngine::cast_masters(int unit, Stream& stream) {
  device_optimizer_.cast_masters(unit_buckets_.of(unit), stream);
  host_.cast_masters(unit_buckets_.of(unit), stream);
}

UnitGathers OffloadEngine::unit_gathers() {
  return {.stream = [this]() -> Stream& { return exchange_->gathers(); },
          .sent = [this](int unit) { return has_final_weights(unit); },
          .require_sent =
              [this](int unit) {
                for (const Bucket& bucket : unit_buckets_.of(unit)) require_sent(bucket, exchange_->gathers());
              },
          .cast_masters = [this](int unit) { cast_masters(unit, exchange_->gathers()); },
          .gather = [this](std::span<const BucketGather> gathers) { exchange_->gather(gathers); },
          .whole =
              [this](int unit) {
                const std::span<Bucket> buckets = unit_buckets_.of(unit);
                return std::all_of(buckets.begin(), buckets.end(),
                                   [&](const Bucket& b) { return exchange_->whole(b); });
              }};
}

void OffloadEngine::require_sent(const Bucket& bucket, Stream& stream) {
  if (bucket.on_host())
    host_.require_weights(bucket, stream);
  else if (bucket.on_device())
    device_optimizer_.require(bucket, stream);
}

void OffloadEngine::require_updates(Stream& stream) {
  for (const Bucket& bucket : buckets_)
    if (bucket.on_host()) host_.require_weights(bucket, stream);
  exchange_->gather(buckets_, stream);
}

void OffloadEngine::release_weights(int unit, Stream& stream) {
  weights_.of(unit).release(unit, stream);
  weights_.released();
}

void OffloadEngine::require_gradients(int unit, Stream& stream) {
  const std::span<Bucket> buckets = unit_buckets_.of(unit);
  const bool free = std::all_of(buckets.begin(), buckets.end(),
                                [&](const Bucket& b) { return !b.on_host() || host_.gradient_free(b); });
  if (!free) waits_.begin(stream, WaitReason::gradient);
  for (const Bucket& bucket : buckets)
    if (bucket.on_host()) host_.require_gradient(bucket, stream);
  if (!free) waits_.end(stream);
  GradientResidency& gradients = step_gradients_.of(unit);
  const bool here = gradients.here(unit);
  if (!here) waits_.begin(stream, gradients.reason());
  gradients.require(unit, stream);
  if (!here) waits_.end(stream);
}

GradientSink::Target OffloadEngine::gradient(int first, int count) {
  const int unit = layout_.parameter(first).unit;
  if (!layout_.trains_any(first, count)) return {};
  choose_updates();
  const Target target{gradients_.places().view(first, count), step_gradients_.write(first, count)};
  const Range range{layout_.range(first).begin, layout_.range(first + count - 1).end};
  for (Bucket& bucket : unit_buckets_.of(unit))
    if (common(bucket.range(), range).size() > 0) land(bucket);
  return target;
}

void OffloadEngine::land(Bucket& bucket) {
  if (bucket.on_host())
    host_.land(bucket);
  else if (bucket.on_device())
    device_optimizer_.land(bucket);
}

void OffloadEngine::begin_step() {
  if (!device_.backed()) return;
  waits_.collect();
  passes_.begin_step();
}

void OffloadEngine::begin_last_micro_batch(double lr, std::int64_t update_number) {
  step_.lr = lr;
  step_.update_number = update_number;
  step_.updates.clear();
  begin_last();
}

void OffloadEngine::begin_last_micro_batch(std::span<const ParameterUpdate> updates) {
  SO_CHECK(ranks_.size() == 1, "updates by parameter on {} ranks", ranks_.size());
  step_.updates.assign(updates.begin(), updates.end());
  begin_last();
}

void OffloadEngine::begin_last() {
  step_.last_micro_batch = true;
  step_.has_statistics = step_.updates_chosen = false;
  passes_.begin_last();
  host_.throw_if_failed();
}

AdamWSteps OffloadEngine::steps(float clip) const {
  if (!step_.updates.empty()) return {layout_, step_.updates, clip};
  return {layout_, make_adamw_step(settings_.adamw, step_.lr, settings_.weight_decay, step_.update_number, clip)};
}

// To choose takes milliseconds. The device would wait for that before the forward pass, so it is done where the forward
// pass must wait for the host in any case, or else when the first gradient comes: the device is behind then.
void OffloadEngine::choose_updates() {
  if (!step_.last_micro_batch || std::exchange(step_.updates_chosen, true)) return;
  host_.begin_step(steps(1.0f), chooser_.choose(step_.micro_batches + 1));
}

void OffloadEngine::reopen_step() {
  SO_CHECK(step_.last_micro_batch, "a step is reopened before its last micro-batch");
  SO_CHECK(ranks_.size() == 1, "a step reopened on {} ranks", ranks_.size());
  // They may have been cast on their way.
  SO_CHECK(!host_gradients_.moves(), "a step reopened whose gradients have moved");
  step_.last_micro_batch = false;
  host_.reopen();
  for (int unit = 0; unit < layout_.units(); ++unit) weights_.of(unit).settle(unit, false);
}

void OffloadEngine::drop_gradients() {
  SO_CHECK(!step_.last_micro_batch, "gradients dropped in a step's last micro-batch");
  step_gradients_.drop();
  step_.micro_batches = 0;
}

void OffloadEngine::gradients_ready(int unit, Stream& stream) {
  choose_updates();  // before this micro-batch is counted
  if (begins_pass(unit)) {
    weights_.end_pass();
    ++step_.micro_batches;
  }
  const bool last = step_.last_micro_batch;
  Stream& sums = step_gradients_.complete(unit, last, stream);
  if (last) complete_last(unit, stream, sums);
  step_gradients_.of(unit).leave(unit, last, sums);
}

void OffloadEngine::complete_last(int unit, Stream& stream, Stream& sums) {
  const auto [begin, end] = layout_.unit_parameters(unit);
  std::vector<int> updated;
  for (int p = begin; p < end; ++p)
    if (is_updated(p)) updated.push_back(p);
  const std::span<Bucket> buckets = unit_buckets_.of(unit), complete = unit_buckets_.complete_with(unit);
  exchange_->count(complete, updated, sums);
  Event& landed = passes_.land(unit, stream);
  sums.record(landed);
  if (std::any_of(buckets.begin(), buckets.end(), std::mem_fn(&Bucket::on_host)))
    weights_.of(unit).drop(unit);  // before the host may write
  for (Bucket* bucket : host_.landing_order(complete)) {
    land(*bucket);  // of a step that was reopened, or without a gradient
    if (bucket->on_host()) host_.landed(*bucket, landed);
  }
}

Verdict OffloadEngine::finish_step(Stream& compute, std::span<const GradStats> of_all) {
  SO_CHECK(step_.last_micro_batch, "finish_step before the last micro-batch");
  step_.last_micro_batch = false;
  // A gradient that nobody wrote is an earlier step's, which must not be taken for this one's.
  for (int p = 0; p < layout_.count(); ++p)
    SO_CHECK(step_gradients_.written(p) || !is_updated(p), "no gradient of '{}' in this step",
             layout_.parameter(p).name);
  step_gradients_.restart();
  try {
    return take_verdict(compute, of_all);
  } catch (const std::exception& error) {
    ranks_.abort(error.what());
    host_.fail(std::current_exception());
    throw;
  }
}

// Nobody takes the statistics of a parameter without an update, which are zero.
std::vector<GradStats> OffloadEngine::statistics() const {
  std::vector<GradStats> all = exchange_->statistics();
  for (int p = 0; p < layout_.count(); ++p)
    if (!is_updated(p)) all[static_cast<std::size_t>(p)] = {};
  return all;
}

void OffloadEngine::take_statistics(Stream& compute) {
  if (step_.has_statistics) return;
  exchange_->send_statistics(compute);
  compute.record(passes_.complete());
  passes_.complete().synchronize();
  step_.has_statistics = true;
}

double OffloadEngine::gradient_norm(Stream& compute) {
  return make_verdict(gradient_statistics(compute), ranks_, 0).norm;
}

std::vector<GradStats> OffloadEngine::gradient_statistics(Stream& compute) {
  SO_CHECK(step_.last_micro_batch && ranks_.size() == 1,
           "a norm of gradients before the last micro-batch, or of several ranks");
  try {
    take_statistics(compute);
  } catch (const std::exception&) {
    host_.fail(std::current_exception());
    throw;
  }
  return statistics();
}

Verdict OffloadEngine::take_verdict(Stream& compute, std::span<const GradStats> of_all) {
  device_optimizer_.landed();
  waits_.begin(compute, WaitReason::verdict);
  take_statistics(compute);

  const Verdict verdict =
      make_verdict(of_all.empty() ? std::span<const GradStats>(statistics()) : of_all, ranks_, settings_.max_grad_norm);
  const bool clipped = verdict.clip != 1.0f;
  const AdamWSteps step = steps(verdict.clip);
  ++counters_.steps;
  counters_.skipped_steps += verdict.finite ? 0 : 1;
  counters_.clipped_steps += verdict.finite && clipped ? 1 : 0;
  // A skipped step leaves every rank's weights as they were.
  if (verdict.finite) exchange_->forget_updated();
  host_.decide(verdict.finite, !clipped, step);
  waits_.end(compute);
  device_optimizer_.decide(verdict.finite, step, compute);
  for (int unit = 0; unit < layout_.units(); ++unit)
    if (settings_.placement.on_host(unit))
      weights_.of(unit).settle(unit, verdict.finite);
    else if (verdict.finite)
      weights_.of(unit).drop(unit);
  // Waits for the device, which has its next work by now.
  measure(!verdict.finite || clipped, std::exchange(step_.micro_batches, 0));
  passes_.decide(compute);
  if (settings_.placement.schedule == Schedule::synchronous) host_.finish();
  return verdict;
}

// All of the step has run on the device, or is about to: what waits for the verdict has been given it.
void OffloadEngine::measure(bool clipped_or_skipped, std::int64_t micro_batches) {
  if (!device_.backed()) return;
  const WaitSeconds waits = waits_.collect();
  for (std::size_t i = 0; i < wait_reasons; ++i) counters_.device_waits[i] += waits[i];
  passes_.measure(waits, micro_batches);
  chooser_.measured(clipped_or_skipped);
}

EngineCounters OffloadEngine::counters() const {
  const DeviceCounters& device = device_optimizer_.counters();
  EngineCounters all = counters_;
  HostClock::Clock::time_point at;
  all.host = host_.counters(at);
  all.seconds = std::chrono::duration<double>(at - made_).count();
  all.streamed_units = weights_.copies(ResidencyKind::streamed);
  all.gathered_units = weights_.copies(ResidencyKind::gathered);
  all.sums_brought = step_gradients_.sums_brought();
  all.device_updates = device.committed;
  all.committed_buckets = device.committed + all.host.committed;
  all.discarded_buckets = device.discarded + all.host.discarded;
  all.device_waits[static_cast<std::size_t>(WaitReason::checkpoint)] = device.save_wait_seconds;
  return all;
}

}  // namespace so
