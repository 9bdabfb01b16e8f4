#include "offload/rank_exchange.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "device/wait_on_exit.h"

namespace so {
namespace {

ShardMap shards_of(const Bucket& bucket, int ranks) { return {bucket.range().size(), ranks}; }

Range own_slice(const Bucket& bucket, const Communicator& ranks) {
  const ShardMap::Slice slice = shards_of(bucket, ranks.size()).slice(ranks.rank());
  const std::int64_t begin = bucket.range().begin;
  if (slice.size() == 0) return {begin, begin};
  return {begin + slice.begin, begin + slice.end};
}

}  // namespace

std::vector<Bucket> shard_buckets(std::vector<Bucket> buckets, const Communicator& ranks) {
  if (ranks.size() == 1) return buckets;
  std::vector<Bucket> sharded;
  for (const Bucket& bucket : buckets)
    sharded.emplace_back(bucket.index(), bucket.range(), bucket.owner(), own_slice(bucket, ranks));
  return sharded;
}

RankExchange::RankExchange(Device& device, EngineOps& ops, Communicator& ranks, const ParameterLayout& layout,
                           std::span<const Bucket> buckets, const DeviceWeights& weights,
                           const UnitGradients& gradients)
    : ops_(ops),
      reduction_ranks_(ranks.duplicate()),
      gather_ranks_(ranks.duplicate()),
      layout_(layout),
      weights_(weights),
      gradients_(gradients),
      gathered_(buckets.size(), true),
      sent_(device.create_event()),
      reduce_(device.create_stream("reduce")),
      gather_(device.create_stream("gather")) {
  // Collectives are host functions, which reach the memory of a CPU device; a GPU's are NCCL's, enqueued here instead.
  SO_CHECK(device.kind() == DeviceKind::cpu || !device.backed(), "ranks on a GPU");
  SO_CHECK(gradients.dtype() == DType::f32, "gradients of several ranks in {}", name_of(gradients.dtype()));
  std::int64_t longest = 0;
  std::size_t most_parts = 0;  // of any rank, so that all take the memory that is planned for one
  for (const Bucket& bucket : buckets) {
    shards_.push_back(shards_of(bucket, ranks.size()));
    whole_.push_back(device.create_event());
    first_parts_.push_back(parts_.size());
    frozen_.push_back(bucket.frozen());
    if (frozen_.back()) continue;
    most_parts += static_cast<std::size_t>(layout.first_ending_after(bucket.range().end - 1) -
                                           layout.first_ending_after(bucket.range().begin) + 1);
    for (int p = layout.first_ending_after(bucket.own().begin); p < layout.count(); ++p) {
      const Range range{std::max(layout.range(p).begin, bucket.own().begin),
                        std::min(layout.range(p).end, bucket.own().end)};
      if (layout.range(p).begin >= bucket.own().end) break;
      if (range.size() <= 0) continue;
      parts_.push_back({p, range});
      longest = std::max(longest, range.size());
    }
  }
  first_parts_.push_back(parts_.size());
  SO_CHECK(parts_.size() <= most_parts, "{} parts of {}", parts_.size(), most_parts);
  stats_ = device.allocate(MemoryKind::device, sizeof(GradStats) * most_parts, "gradient norms");
  stats_host_ = device.allocate(MemoryKind::pinned, stats_.bytes(), "gradient norms");
  scratch_ = device.allocate(MemoryKind::device, EngineOps::stats_scratch(longest), "gradient norms");
}

RankExchange::~RankExchange() {
  for (Stream* stream : {reduce_.get(), gather_.get()}) wait_or_log(*stream, LogLevel::debug);
}

void RankExchange::reduce(const Bucket& bucket, Accumulate mode) {
  const Range range = bucket.range(), own = bucket.own();
  float* const values = reinterpret_cast<float*>(gradients_.places().at(range.begin));
  float* const kept = reinterpret_cast<float*>(gradients_.own_at(own.begin));
  const auto count = static_cast<std::size_t>(own.size());
  const std::span<const float> all(values, static_cast<std::size_t>(range.size()));
  // A sum to be added is made in this rank's part of the whole gradient, which nobody needs any more.
  const std::span<float> sum(mode == Accumulate::add ? values + (own.begin - range.begin) : kept, count);
  SO_CHECK(mode == Accumulate::overwrite || sum.data() != kept || count == 0, "bucket {} adds to itself",
           bucket.index());
  reduce_->host("reduce_scatter", [this, all, sum, kept, counts = shards_[at(bucket)].counts()] {
    reduction_ranks_->reduce_scatter_sum(all, counts, sum);
    if (sum.data() == kept) return;
    for (std::size_t i = 0; i < sum.size(); ++i) kept[i] += sum[i];
  });
}

void RankExchange::take_statistics(const Bucket& bucket) {
  const Tensor scratch(scratch_.data(), DType::u8, {static_cast<std::int64_t>(scratch_.bytes())});
  for (std::size_t i = first_parts_[at(bucket)]; i < first_parts_[at(bucket) + 1]; ++i) {
    const Range part = parts_[i].range;
    ops_.grad_stats(*reduce_, static_cast<GradStats*>(stats_.data()) + i,
                    Tensor(gradients_.own_at(part.begin), DType::f32, {part.size()}), scratch);
  }
}

void RankExchange::send_statistics(Stream& stream) {
  reduce_->copy(stats_host_.data(), stats_.data(), stats_.bytes());
  reduce_->record(*sent_);
  stream.wait(*sent_);
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

void RankExchange::gather(const Bucket& bucket) {
  const Range range = bucket.range();
  std::byte* const all = weights_.at(range.begin);
  gather(bucket, all + weights_.bytes_of({range.begin, bucket.own().begin}), all);
  gather_->record(*whole_[at(bucket)]);
  gathered_[at(bucket)] = true;
}

void RankExchange::gather(const Bucket& bucket, const std::byte* own, std::byte* values) {
  const std::size_t element = size_of(weights_.dtype());
  const std::span<std::byte> all(values, weights_.bytes_of(bucket.range()));
  const std::span<const std::byte> slice(own, weights_.bytes_of(bucket.own()));
  std::vector<std::int64_t> bytes;
  for (const std::int64_t count : shards_[at(bucket)].counts())
    bytes.push_back(count * static_cast<std::int64_t>(element));
  gather_->host("all_gather",
                [this, all, slice, bytes = std::move(bytes)] { gather_ranks_->all_gather(slice, bytes, all); });
}

}  // namespace so
