#include "ranks/collectives/cpu_collectives.h"

#include <numeric>
#include <vector>

#include "base/error.h"

namespace so {

CpuCollectives::CpuCollectives(Device& device, Communicator& ranks, const CollectiveSizes& sizes)
    : ranks_(ranks.duplicate()),
      sum_(device.allocate(
          MemoryKind::device,
          sizes.reduced == DType::f32 ? 0 : static_cast<std::size_t>(sizes.longest_slice) * sizeof(float),
          "rank exchange")) {}

void CpuCollectives::reduce_scatter_sum(Stream& stream, std::span<const SliceSum> sums, Accumulate mode) {
  for (const SliceSum& sum : sums) reduce_one(stream, sum, mode);
}

void CpuCollectives::reduce_one(Stream& stream, const SliceSum& reduced, Accumulate mode) {
  const auto& [values, counts, own] = reduced;
  const auto slice = std::accumulate(counts.begin(), counts.begin() + ranks_->rank(), std::int64_t{0});
  // A sum to be added is made in this rank's part of the values, which nobody needs any more, if it is fp32. One to be
  // rounded has bf16 values.
  Tensor sum = own;
  if (mode == Accumulate::add || own.dtype() == DType::bf16) {
    sum = values.dtype() == DType::f32 ? values.rows(slice, own.size()) : Tensor(sum_.data(), DType::f32, {own.size()});
    SO_CHECK(sum.data() != own.data() || own.size() == 0, "a sum is added to itself");
    SO_CHECK(values.dtype() == DType::f32 || sum.bytes() <= sum_.bytes(), "a slice of {} elements", own.size());
  }
  stream.host("reduce_scatter", [this, values = values, sum, own = own, mode,
                                 counts = std::vector<std::int64_t>(counts.begin(), counts.end())] {
    if (values.dtype() == DType::bf16)
      ranks_->reduce_scatter_sum(values.span<const bf16>(), counts, sum.span<float>());
    else
      ranks_->reduce_scatter_sum(values.span<const float>(), counts, sum.span<float>());
    if (sum.data() == own.data()) return;
    const std::span<const float> from = sum.span<float>();
    const auto finish = [&]<class T>(std::span<T> to) {
      for (std::size_t i = 0; i < to.size(); ++i)
        to[i] = T(mode == Accumulate::add ? static_cast<float>(to[i]) + from[i] : from[i]);
    };
    if (own.dtype() == DType::bf16)
      finish(own.span<bf16>());
    else
      finish(own.span<float>());
  });
}

void CpuCollectives::all_gather(Stream& stream, std::span<const SliceGather> gathers) {
  const auto rank = static_cast<std::size_t>(ranks_->rank());
  for (const auto& [own, bytes, all] : gathers) {
    const std::span slice(own, static_cast<std::size_t>(bytes[rank]));
    const std::span whole(all, static_cast<std::size_t>(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0})));
    stream.host("all_gather", [this, slice, whole, counts = std::vector<std::int64_t>(bytes.begin(), bytes.end())] {
      ranks_->all_gather(slice, counts, whole);
    });
  }
}

}  // namespace so
