#include "offload/engine.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace so {
namespace {

std::int64_t largest(std::span<const Bucket> buckets, Owner owner) {
  std::int64_t elements = 0;
  for (const Bucket& bucket : buckets)
    if (bucket.owner() == owner) elements = std::max(elements, bucket.range().size());
  return elements;
}

std::int64_t largest_parameter(const ParameterLayout& layout) {
  std::int64_t elements = 0;
  for (const Parameter& parameter : layout.parameters()) elements = std::max(elements, parameter.size());
  return elements;
}

bool on_host(const Bucket& bucket) { return bucket.owner() == Owner::host; }

bool is_inner(const ParameterLayout& layout, int unit) { return unit > 0 && unit < layout.units() - 1; }

std::vector<bool> streamed(const ParameterLayout& layout, const EngineSettings& settings) {
  return streamed_units(layout.units(), settings.device_units, settings.streamed_units);
}

// Streamed units have the first slots. The first and last unit hold embeddings: large, and used at both ends of a step
// where they are tied.
std::vector<int> weight_slots(const ParameterLayout& layout, const EngineSettings& settings) {
  std::vector<int> slots = WeightStream::places(streamed(layout, settings));
  for (int unit = 0; unit < settings.device_units && settings.transient_weights; ++unit)
    if (is_inner(layout, unit)) slots[static_cast<std::size_t>(unit)] = stream_places;
  return slots;
}
std::vector<int> make_gradient_slots(const ParameterLayout& layout, const EngineSettings& settings) {
  std::vector<int> slots(static_cast<std::size_t>(layout.units()), -1);
  for (int unit = settings.device_units; unit < layout.units() && settings.transient_gradients; ++unit)
    if (is_inner(layout, unit)) slots[static_cast<std::size_t>(unit)] = unit % gradient_slots;
  return slots;
}

// Pieces in which device-owned state is read and written: 32 MiB, where copies run at full speed.
constexpr std::int64_t transfer_elements = std::int64_t{8} << 20;

Range common(Range a, Range b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

}  // namespace

OffloadEngine::OffloadEngine(Device& device, ThreadPool& host_pool, Communicator& ranks, const ParameterLayout& layout,
                             const EngineSettings& settings, std::unique_ptr<UpdatePolicy> policy)
    : device_(device),
      ops_(make_engine_ops(device)),
      host_pool_(host_pool),
      ranks_(ranks),
      layout_(layout),
      settings_(settings),
      policy_(settings.schedule == Schedule::synchronous ? make_synchronous_policy()
              : policy                                   ? std::move(policy)
                                                         : make_adaptive_policy()),
      weights_(device, layout, settings.compute, weight_slots(layout, settings)),
      stream_(device, layout, weights_, streamed(layout, settings),
              [this](int unit) {
                const std::span<Bucket> buckets = buckets_of(unit);
                return std::all_of(buckets.begin(), buckets.end(),
                                   [&](const Bucket& bucket) { return host_.weights_final(bucket); });
              }),
      gradients_(device, layout, settings.gradients, make_gradient_slots(layout, settings), "gradients"),
      stats_(device.allocate(MemoryKind::device, sizeof(GradStats) * static_cast<std::size_t>(layout.count()),
                             "gradient norms")),
      stats_host_(device.allocate(MemoryKind::pinned, stats_.bytes(), "gradient norms")),
      stats_scratch_(
          device.allocate(MemoryKind::device, EngineOps::stats_scratch(largest_parameter(layout)), "gradient norms")),
      buckets_(make_buckets(layout, settings.bucket_elements, settings.device_units,
                            settings.transient_weights || settings.transient_gradients || settings.streamed_units > 0)),
      host_state_(device, Owner::host, buckets_, settings.moments,
                  settings.schedule == Schedule::synchronous ? 0 : settings.undo_buckets),
      device_state_(device, Owner::device, buckets_, settings.moments),
      written_(static_cast<std::size_t>(layout.count()), false),
      device_adamw_(make_device_adamw(device)),
      gate_(static_cast<int>(buckets_.size())),
      waits_(device),
      first_landed_(device.create_event(Timing::on)),
      complete_(device.create_event(Timing::on)),
      decided_(device.create_event(Timing::on)),
      host_(device, host_pool, layout, buckets_, host_state_, weights_, stream_, gradients_,
            settings.transient_gradients, settings.cast, gate_) {
  SO_CHECK(settings.gradients == DType::f32 || settings.gradients == settings.compute, "gradients in {}",
           name_of(settings.gradients));
  held_gradients_.fill(-1);
  for (const Bucket& bucket : buckets_)
    current_.push_back(bucket.owner() == Owner::device ? device.create_event() : nullptr);
  // By elements, which is what a pass works through.
  for (const int index : host_.owned())
    forward_shares_.push_back(static_cast<double>(buckets_[static_cast<std::size_t>(index)].range().begin) /
                              static_cast<double>(layout.elements()));
  int first = 0;
  for (int unit = 0; unit < layout.units(); ++unit) {
    const Range range = layout.unit_range(unit);
    const auto bucket = [&](int i) -> const Bucket& { return buckets_[static_cast<std::size_t>(i)]; };
    while (bucket(first).range().end <= range.begin) ++first;
    int last = first;
    while (last < static_cast<int>(buckets_.size()) && bucket(last).range().begin < range.end) ++last;
    unit_buckets_.push_back({first, last});
    landed_.push_back(device.create_event());
  }
  if (const std::int64_t elements = largest(buckets_, Owner::device); elements > 0)
    transfer_ = std::make_unique<StateTransfer>(device, std::min(elements, transfer_elements));
  if (!device.backed()) return;
  host_state_.clear(host_pool);
  const auto stream = device.create_stream("clear");
  device_state_.clear(*stream);
  stream->synchronize();
}

// On the model's stream, as all that uses or changes the masters and the slot.
void OffloadEngine::cast_masters(int unit, Stream& stream) {
  if (held_weights_ == unit) return;
  held_weights_ = unit;
  for_each_run(buckets_of(unit), [&](std::span<Bucket> run) { cast_masters(run, stream); });
}

void OffloadEngine::cast_masters(std::span<const Bucket> run, Stream& stream) {
  const Range range{run.front().range().begin, run.back().range().end};
  const Tensor weights(weights_.at(range.begin), settings_.compute, {range.size()}),
      masters(device_state_.master(run.front(), range.begin), DType::f32, {range.size()});
  if (settings_.compute == DType::bf16)
    ops_->cast(stream, weights, masters);
  else
    stream.copy(weights.data(), masters.data(), weights.bytes());
}

void OffloadEngine::require_weights(int unit, Stream& stream) {
  // What the device owns, the model's stream itself has brought up to date.
  if (has_transient_weights(unit))
    cast_masters(unit, stream);
  else
    require_from_host(unit, stream);
  stream_.prefetch();
}

void OffloadEngine::require_from_host(int unit, Stream& stream) {
  const std::span<Bucket> buckets = buckets_of(unit);
  const bool streamed = stream_.has(unit);
  bool here = !streamed || stream_.here(unit), sent = true;
  for (const Bucket& bucket : buckets) {
    if (!on_host(bucket)) continue;
    here = here && host_.weights_here(bucket);
    sent = sent && host_.weights_sent(bucket);
  }
  if (!here) waits_.begin(stream, !sent ? WaitReason::host : streamed ? WaitReason::stream : WaitReason::link);
  for (const Bucket& bucket : buckets)  // also if all are here: a copy that failed must stop this stream too
    if (on_host(bucket)) host_.require_weights(bucket, stream);
  if (streamed) stream_.require(unit, stream);
  if (!here) waits_.end(stream);
}

void OffloadEngine::require_updates(Stream& stream) {
  for (const Bucket& bucket : buckets_)
    if (on_host(bucket)) host_.require_weights(bucket, stream);
}

void OffloadEngine::release_weights(int unit, Stream& stream) {
  if (!stream_.has(unit)) return;
  stream_.release(unit, stream);
  stream_.prefetch();
}

void OffloadEngine::require_gradients(int unit, Stream& stream) {
  const std::span<Bucket> buckets = buckets_of(unit);
  const bool free = std::all_of(buckets.begin(), buckets.end(),
                                [&](const Bucket& b) { return !on_host(b) || host_.gradient_free(b); });
  if (!free) waits_.begin(stream, WaitReason::gradient);
  for (const Bucket& bucket : buckets)
    if (on_host(bucket)) host_.require_gradient(bucket, stream);
  if (!free) waits_.end(stream);
  if (gradients_.slot(unit) < 0) return;
  int& held = held_gradients_[static_cast<std::size_t>(gradients_.slot(unit))];
  if (held >= 0)
    for (const Bucket& bucket : buckets_of(held)) host_.require_fetched(bucket, stream);
  held = unit;
}

GradientSink::Target OffloadEngine::gradient(int first, int count) {
  const int unit = layout_.parameter(first).unit;
  SO_CHECK(gradients_.slot(unit) < 0 || !written_[static_cast<std::size_t>(first)],
           "a second gradient of '{}', whose first was moved away", layout_.parameter(first).name);
  Target target{gradients_.view(first, count),
                written_[static_cast<std::size_t>(first)] ? Accumulate::add : Accumulate::overwrite};
  const Range range{layout_.range(first).begin, layout_.range(first + count - 1).end};
  for (Bucket& bucket : buckets_of(unit)) {
    if (common(bucket.range(), range).size() <= 0) continue;
    if (bucket.owner() == Owner::host) {
      host_.land(bucket);
      continue;
    }
    if (bucket.state() == BucketState::returning) bucket.settle();
    bucket.land();
  }
  std::fill_n(written_.begin() + first, count, true);
  return target;
}

void OffloadEngine::begin_last_micro_batch(double lr, std::int64_t update_number) {
  last_micro_batch_ = true;
  lr_ = lr;
  update_number_ = update_number;
  first_ready_ = true;
  host_.begin_step(make_adamw_step(settings_.adamw, lr, settings_.weight_decay, update_number),
                   policy_->choose(facts()));
}

void OffloadEngine::gradients_ready(int unit, Stream& stream) {
  if (!last_micro_batch_) return;
  const auto [first, last] = layout_.unit_parameters(unit);
  auto* stats = static_cast<GradStats*>(stats_.data());
  const Tensor scratch(stats_scratch_.data(), DType::u8, {static_cast<std::int64_t>(stats_scratch_.bytes())});
  for (int p = first; p < last; ++p) ops_->grad_stats(stream, stats + p, gradients_.view(p), scratch);
  if (first_ready_) stream.record(*first_landed_);
  first_ready_ = false;
  Event& landed = *landed_[static_cast<std::size_t>(unit)];
  stream.record(landed);
  if (stream_.has(unit)) stream_.drop(unit);  // before the host may write them
  // Units come last first, so a bucket is complete with the unit in which it begins; the highest bucket first, as the
  // forward pass needs it last.
  const std::span<Bucket> buckets = buckets_of(unit);
  for (auto bucket = buckets.rbegin(); bucket != buckets.rend(); ++bucket)
    if (bucket->owner() == Owner::host && bucket->range().begin >= layout_.unit_range(unit).begin)
      host_.landed(*bucket, landed);
}

Verdict OffloadEngine::finish_step(Stream& compute) {
  SO_CHECK(last_micro_batch_, "finish_step before the last micro-batch");
  last_micro_batch_ = false;
  // What nobody wrote is an earlier step's gradient, which must not be taken for this one's.
  const auto missing = std::find(written_.begin(), written_.end(), false);
  SO_CHECK(missing == written_.end(), "no gradient of '{}' in this step",
           layout_.parameter(static_cast<int>(missing - written_.begin())).name);
  written_.assign(written_.size(), false);
  try {
    return take_verdict(compute);
  } catch (...) {
    host_.fail(std::current_exception());
    throw;
  }
}

Verdict OffloadEngine::take_verdict(Stream& compute) {
  compute.copy(stats_host_.data(), stats_.data(), stats_.bytes());
  compute.record(*complete_);
  waits_.begin(compute, WaitReason::verdict);
  for (Bucket& bucket : buckets_)
    if (bucket.owner() == Owner::device) bucket.defer();
  complete_->synchronize();

  const Verdict verdict =
      make_verdict({static_cast<const GradStats*>(stats_host_.data()), static_cast<std::size_t>(layout_.count())},
                   ranks_, settings_.max_grad_norm);
  const bool clipped = verdict.clip != 1.0f;
  const AdamWStep step = make_adamw_step(settings_.adamw, lr_, settings_.weight_decay, update_number_, verdict.clip);
  ++counters_.steps;
  counters_.skipped_steps += verdict.finite ? 0 : 1;
  counters_.clipped_steps += verdict.finite && clipped ? 1 : 0;
  host_.decide(verdict.finite, !clipped, step);
  waits_.end(compute);
  measure(!verdict.finite || clipped);
  if (verdict.finite) {
    for_each_run(buckets_, [&](std::span<Bucket> run) { update_on_device(run, compute, step); });
  } else {
    for (Bucket& bucket : buckets_)
      if (bucket.owner() == Owner::device) skip_on_device(bucket);
  }
  compute.record(*decided_);
  if (settings_.schedule == Schedule::synchronous) host_.finish();
  return verdict;
}

// All of the step has run on the device but for the end of the wait for the verdict, which counts in the next.
void OffloadEngine::measure(bool clipped_or_skipped) {
  if (!device_.backed()) return;
  const WaitSeconds waits = waits_.collect();
  for (std::size_t i = 0; i < wait_reasons; ++i) counters_.device_waits[i] += waits[i];
  backward_.add(complete_->seconds_since(*first_landed_) - waits[static_cast<std::size_t>(WaitReason::gradient)]);
  if (was_decided_)
    forward_.add(first_landed_->seconds_since(*decided_) - waits[static_cast<std::size_t>(WaitReason::host)] -
                 waits[static_cast<std::size_t>(WaitReason::link)]);
  was_decided_ = true;
  clip_rate_ += 0.2 * ((clipped_or_skipped ? 1.0 : 0.0) - clip_rate_);
}

double RecentMedian::median() const {
  std::array<double, 5> sorted = values_;
  const auto count = static_cast<std::ptrdiff_t>(std::min(count_, sorted.size()));
  if (count == 0) return 0;
  std::nth_element(sorted.begin(), sorted.begin() + count / 2, sorted.begin() + count);
  return sorted[static_cast<std::size_t>(count / 2)];
}

UpdateFacts OffloadEngine::facts() const {
  UpdateFacts facts;
  facts.elements = host_.elements();
  facts.forward_shares = forward_shares_;
  facts.undo_places = settings_.undo_buckets;
  facts.update_seconds = host_.update_seconds();
  facts.preview_seconds = host_.preview_seconds();
  facts.forward_seconds = forward_.median();
  facts.backward_seconds = backward_.median();
  facts.clip_rate = clip_rate_;
  return facts;
}

EngineCounters OffloadEngine::counters() const {
  EngineCounters all = counters_;
  all.host = host_.counters();
  all.streamed_units = stream_.copies();
  all.committed_buckets += all.host.committed;
  all.discarded_buckets += all.host.discarded;
  all.save_wait_seconds += all.host.save_wait_seconds;
  return all;
}

void OffloadEngine::begin_save() {
  host_.finish();
  gate_.begin();
}

std::span<Bucket> OffloadEngine::adjacent(std::span<Bucket> buckets) const {
  // Long beside what a launch takes to begin and to end; and by no more than this does a save hold up an update.
  constexpr std::int64_t most_elements = std::int64_t{64} << 20;
  const Range first = buckets.front().range();
  const auto arrays = [&](const Bucket& bucket) {
    const std::int64_t begin = bucket.range().begin;
    const AdamWState state = device_state_.at(bucket, begin);
    return std::array<const void*, 5>{weights_.at(begin), gradients_.at(begin), state.master, state.m.data(),
                                      state.v.data()};
  };
  const std::size_t moment = size_of(settings_.moments);
  const std::array<std::size_t, 5> sizes{size_of(settings_.compute), size_of(settings_.gradients), sizeof(float),
                                         moment, moment};
  const std::array<const void*, 5> begins = arrays(buckets.front());
  const auto follows = [&](const Bucket& next) {
    if (next.owner() != Owner::device || next.range().end - first.begin > most_elements) return false;
    const std::array<const void*, 5> there = arrays(next);
    for (std::size_t i = 0; i < begins.size(); ++i)
      if (static_cast<const std::byte*>(there[i]) !=
          static_cast<const std::byte*>(begins[i]) +
              static_cast<std::size_t>(next.range().begin - first.begin) * sizes[i])
        return false;
    return true;
  };
  std::size_t count = 1;
  while (count < buckets.size() && follows(buckets[count])) ++count;
  return buckets.first(count);
}

void OffloadEngine::update_on_device(std::span<Bucket> run, Stream& compute, const AdamWStep& step) {
  for (const Bucket& bucket : run) counters_.save_wait_seconds += gate_.wait(bucket.index());
  const Range range{run.front().range().begin, run.back().range().end};
  std::vector<AdamWRun> parts;
  for (const ParameterLayout::Run& part : layout_.runs(range))
    parts.push_back({part.range.begin - range.begin, part.range.end - range.begin, part.decay});
  device_adamw_->update(compute, step, parts, Tensor(gradients_.at(range.begin), settings_.gradients, {range.size()}),
                        device_state_.at(run.front(), range.begin),
                        Tensor(weights_.at(range.begin), settings_.compute, {range.size()}));
  for (Bucket& bucket : run) {
    if (has_transient_weights(bucket)) held_weights_ = -1;
    compute.record(current(bucket));
    bucket.commit();
    bucket.depart();
    ++counters_.committed_buckets;
    ++counters_.device_updates;
  }
}

void OffloadEngine::skip_on_device(Bucket& bucket) {
  bucket.discard();
  bucket.settle();
  ++counters_.discarded_buckets;
}

void OffloadEngine::read_state(StateArray array, Range range, const ReadBody& body) {
  for (const Bucket& bucket : buckets_) {
    const Range part = common(bucket.range(), range);
    if (part.size() <= 0) continue;
    // What a save still has to read, nobody touches.
    if (bucket.owner() == Owner::host && !gate_.pending(bucket.index())) host_.require_state(bucket);
    const Tensor from = state_of(bucket).part(array, bucket, part);
    const auto give = [&](std::int64_t offset, std::span<const float> values) { body(part.begin + offset, values); };
    if (bucket.owner() == Owner::host)
      read_host_state(from, give);
    else
      transfer_->read(from, current(bucket), give);
  }
}

void OffloadEngine::write_state(StateArray array, Range range, const WriteBody& fill) {
  for (const Bucket& bucket : buckets_) {
    const Range part = common(bucket.range(), range);
    if (part.size() <= 0) continue;
    if (bucket.owner() == Owner::host) host_.require_state(bucket);
    const Tensor to = state_of(bucket).part(array, bucket, part);
    const auto take = [&](std::int64_t offset, std::span<float> values) { fill(part.begin + offset, values); };
    if (bucket.owner() == Owner::host)
      write_host_state(to, take);
    else
      transfer_->write(to, current(bucket), take);
  }
}

WeightForms OffloadEngine::forms(DType stored) const {
  if (settings_.compute == DType::f32) return {.wide = true, .narrow = false};
  // From bf16 the masters are widened where they lie, so that fewer bytes travel.
  if (stored == DType::bf16) return {.wide = false, .narrow = true};
  // The device rounds what it owns itself.
  return {.wide = true, .narrow = !host_.owned().empty()};
}

void OffloadEngine::place_weights(Stream& stream, const WeightPiece& piece) {
  const bool has_wide = !piece.wide.empty(), has_narrow = !piece.narrow.empty();
  const Range range{piece.begin, piece.begin + piece.size()};
  for (const Bucket& bucket : buckets_) {
    const Range part = common(bucket.range(), range);
    if (part.size() <= 0) continue;
    const auto from = static_cast<std::size_t>(part.begin - range.begin);
    if (bucket.owner() == Owner::host)
      host_.require_weights(bucket, stream);
    else
      stream.wait(current(bucket));
    float* const master = state_of(bucket).master(bucket, part.begin);
    const Tensor weights(weights_.at(part.begin), settings_.compute, {part.size()}),
        masters(master, DType::f32, {part.size()});
    if (has_transient_weights(bucket)) held_weights_ = -1;
    const bool sent = settings_.compute == DType::f32 || has_narrow;
    SO_CHECK(sent || bucket.owner() == Owner::device, "host-owned weights at {} came in fp32 only", part.begin);
    const void* const source = settings_.compute == DType::f32 ? static_cast<const void*>(piece.wide.data() + from)
                                                               : piece.narrow.data() + from;
    if (streams(bucket)) {
      stream_.drop_all();
      std::memcpy(stream_.at(part.begin), source, weights.bytes());
    } else if (sent) {
      stream.copy(weights.data(), source, weights.bytes());
    }
    if (bucket.owner() == Owner::device) {
      if (settings_.compute == DType::f32) {
        stream.copy(master, weights.data(), masters.bytes());
      } else if (has_wide) {
        stream.copy(master, piece.wide.data() + from, masters.bytes());
        if (!sent) ops_->cast(stream, weights, masters);
      } else {
        ops_->cast(stream, masters, weights);
      }
      continue;
    }
    host_pool_.parallel_for(part.size(), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      const std::size_t first = from + static_cast<std::size_t>(begin), count = static_cast<std::size_t>(end - begin);
      if (has_wide)
        std::memcpy(master + begin, piece.wide.data() + first, count * sizeof(float));
      else
        std::copy_n(piece.narrow.data() + first, count, master + begin);
    });
  }
}

void OffloadEngine::upload_weights(Stream& compute) {
  host_.finish();
  stream_.drop_all();
  for (const Bucket& bucket : buckets_) {
    if (bucket.owner() == Owner::host) {
      host_.send_masters(bucket);
      host_.require_weights(bucket, compute);
      continue;
    }
    if (has_transient_weights(bucket)) {
      held_weights_ = -1;
      continue;
    }
    cast_masters({&bucket, 1}, compute);
    compute.record(current(bucket));
  }
  compute.synchronize();
}

}  // namespace so
