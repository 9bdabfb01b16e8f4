#include "offload/rank_exchange.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "device/wait_on_exit.h"

namespace so {
RankExchange::RankExchange(Device& device, EngineOps& ops, Communicator& ranks, CollectiveRoute route,
                           const ParameterLayout& layout, std::span<const Bucket> buckets, const UnitWeights& weights,
                           const UnitGradients& gradients, RequireSent require_sent)
    : ops_(ops),
      layout_(layout),
      weights_(weights),
      gradients_(gradients),
      require_sent_(std::move(require_sent)),
      gathered_(buckets.size(), true),
      written_(device.create_event()),
      sent_(device.create_event()),
      reduce_(device.create_stream("reduce")),
      gather_(device.create_stream("gather")) {
  // Of any rank, so that all take the memory that is planned for one.
  std::size_t most_parts = 0;
  std::vector<std::size_t> scratch(static_cast<std::size_t>(layout.units())), gathered(scratch.size());
  std::vector<std::int64_t> reduced(scratch.size());
  CollectiveSizes sizes{.reduced = gradients.dtype()};
  for (const Bucket& bucket : buckets) {
    shards_.emplace_back(bucket.range().size(), ranks.size());
    std::vector<std::int64_t>& bytes = slice_bytes_.emplace_back();
    for (const std::int64_t count : shards_.back().counts())
      bytes.push_back(count * static_cast<std::int64_t>(size_of(weights.on_device().dtype())));
    const std::int64_t slice = shards_.back().counts()[0];  // none is longer
    const auto unit = static_cast<std::size_t>(layout.unit_of(bucket.range().begin));
    gathered[unit] += static_cast<std::size_t>(slice) * size_of(weights.on_device().dtype());
    whole_.push_back(device.create_event());
    first_parts_.push_back(parts_.size());
    frozen_.push_back(bucket.frozen());
    if (frozen_.back()) continue;
    sizes.longest_slice = std::max(sizes.longest_slice, slice);
    const auto parts = static_cast<std::size_t>(layout.first_ending_after(bucket.range().end - 1) -
                                                layout.first_ending_after(bucket.range().begin) + 1);
    most_parts += parts;
    scratch[unit] += EngineOps::stats_scratch(slice) + parts * EngineOps::stats_scratch(1);
    reduced[unit] += slice;
    for (int p = layout.first_ending_after(bucket.own().begin); p < layout.count(); ++p) {
      const Range range{std::max(layout.range(p).begin, bucket.own().begin),
                        std::min(layout.range(p).end, bucket.own().end)};
      if (layout.range(p).begin >= bucket.own().end) break;
      if (range.size() <= 0) continue;
      parts_.push_back({p, range});
    }
  }
  first_parts_.push_back(parts_.size());
  SO_CHECK(parts_.size() <= most_parts, "{} parts of {}", parts_.size(), most_parts);
  stats_ = device.allocate(MemoryKind::device, sizeof(GradStats) * most_parts, "gradient norms");
  stats_host_ = device.allocate(MemoryKind::pinned, stats_.bytes(), "gradient norms");
  scratch_ = device.allocate(MemoryKind::device, *std::max_element(scratch.begin(), scratch.end()), "gradient norms");
  reducing_ = make_device_collectives(device, ops, ranks, route,
                                      {.longest_slice = sizes.longest_slice,
                                       .most_reduced = *std::max_element(reduced.begin(), reduced.end()),
                                       .reduced = sizes.reduced,
                                       .most_gathered = 0});
  gathering_ = make_device_collectives(
      device, ops, ranks, route,
      {.longest_slice = 0, .most_gathered = *std::max_element(gathered.begin(), gathered.end())},
      &weights.on_device().memory());
}

RankExchange::~RankExchange() {
  for (Stream* stream : {reduce_.get(), gather_.get()}) wait_or_log(*stream, LogLevel::debug);
}

Stream& RankExchange::reducing(Stream& model) {
  model.record(*written_);
  reduce_->wait(*written_);
  return *reduce_;
}

void RankExchange::reduce(std::span<const Bucket> buckets, Accumulate mode) {
  std::vector<SliceSum> sums;
  for (const Bucket& bucket : buckets)
    if (!bucket.frozen())
      sums.push_back({Tensor(gradients_.places().at(bucket.range().begin), gradients_.dtype(), {bucket.range().size()}),
                      shards_[at(bucket)].counts(), gradients_.own(bucket)});
  reducing_->reduce_scatter_sum(*reduce_, sums, mode);
}

void RankExchange::count(std::span<const Bucket> buckets, std::span<const int>, Stream& sums) {
  std::vector<StatsOf> parts;
  for (const Bucket& bucket : buckets)
    for (std::size_t i = first_parts_[at(bucket)]; i < first_parts_[at(bucket) + 1]; ++i)
      parts.push_back({static_cast<GradStats*>(stats_.data()) + i, gradients_.own(parts_[i].range)});
  const Tensor scratch(scratch_.data(), DType::u8, {static_cast<std::int64_t>(scratch_.bytes())});
  ops_.grad_stats(sums, parts, scratch);
}

void RankExchange::send_statistics(Stream& model) {
  reduce_->copy(stats_host_.data(), stats_.data(), stats_.bytes());
  reduce_->record(*sent_);
  model.wait(*sent_);
}

std::vector<GradStats> RankExchange::statistics() const {
  std::vector<GradStats> sums(static_cast<std::size_t>(layout_.count()));
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const GradStats& part = static_cast<const GradStats*>(stats_host_.data())[i];
    GradStats& sum = sums[static_cast<std::size_t>(parts_[i].parameter)];
    sum.sum_of_squares += part.sum_of_squares;
    sum.non_finite += part.non_finite;
  }
  return sums;
}

void RankExchange::gather(std::span<const Bucket> buckets, Stream& stream) {
  std::vector<BucketGather> gathers;
  for (const Bucket& bucket : buckets) {
    if (whole(bucket)) continue;
    if (gathers.empty()) weights_.finish_prefetch();  // what was decided to come before
    require_sent_(bucket, *gather_);
    const Range range = bucket.range();
    std::byte* const all = weights_.on_device().at(range.begin);
    gathers.push_back({&bucket, all + weights_.on_device().bytes_of({range.begin, bucket.own().begin}), all});
  }
  if (!gathers.empty()) gather(gathers);
  for (const BucketGather& gathered : gathers) {
    gather_->record(*whole_[at(*gathered.bucket)]);
    gathered_[at(*gathered.bucket)] = true;
  }
  for (const Bucket& bucket : buckets)
    if (stays(bucket)) stream.wait(*whole_[at(bucket)]);
}

void RankExchange::gather(std::span<const BucketGather> gathers) {
  std::vector<SliceGather> slices;
  for (const auto& [bucket, own, all] : gathers) slices.push_back({own, slice_bytes_[at(*bucket)], all});
  gathering_->all_gather(*gather_, slices);
}

}  // namespace so
