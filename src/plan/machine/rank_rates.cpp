#include "plan/machine/rank_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/tensor.h"
#include "optim/engine_ops.h"
#include "plan/machine/hardware.h"
#include "ranks/collectives/device_collectives.h"
#include "ranks/together.h"

namespace so {
namespace {

// Every rank's value of each rate, and of each the slowest.
MachineRates slowest(Communicator& ranks, MachineRates rates) {
  std::vector<double> own;
  for (const auto& [name, member] : rate_names()) own.push_back(rates.*member);
  std::vector<double> all(own.size() * static_cast<std::size_t>(ranks.size()));
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks.size()), std::ssize(own));
  ranks.all_gather(std::span<const double>(own), counts, std::span(all));
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto& [name, member] = rate_names()[i];
    const bool seconds = std::string_view(name).ends_with("seconds");
    for (std::size_t at = i; at < all.size(); at += own.size())
      rates.*member = seconds ? std::max(rates.*member, all[at]) : std::min(rates.*member, all[at]);
  }
  return rates;
}

// Rank 0's rates of an earlier run, for all.
std::optional<RateCache::Found> found_by_first(Communicator& ranks, const std::optional<RateCache>& cache,
                                               const RateKey& key, bool fresh) {
  MachineRates rates;
  static_assert(std::is_trivially_copyable_v<MachineRates>);
  std::string date = on_first_rank(ranks, [&]() -> std::string {
    if (!cache || fresh) return {};
    const auto found = cache->find(key, std::time(nullptr));
    if (!found) return {};
    for (const auto& [name, member] : rate_names()) rates.*member = found->rates.*member;
    rates.adamw = found->rates.adamw;
    return found->date;
  });
  if (date.empty()) return std::nullopt;
  ranks.broadcast(std::as_writable_bytes(std::span(&rates, 1)), 0);
  return RateCache::Found{rates, std::move(date)};
}

}  // namespace

CollectiveRates measure_collectives(Device& device, Communicator& ranks, CollectiveRoute route) {
  // Of fp32; the CPU device's rates are not planned with.
  const std::int64_t all_elements = backend_of(device).own_processors ? std::int64_t{32} << 20 : std::int64_t{1} << 20;
  constexpr int warm = 2, rounds = 5;
  const int size = ranks.size();
  const std::int64_t slice = std::max<std::int64_t>(all_elements / size / 1024 * 1024, 1024);
  const auto ops = make_engine_ops(device);
  const auto stream = device.create_stream("measure collectives");
  const auto bytes = static_cast<std::size_t>(slice * size) * sizeof(float);
  const Buffer memory = device.allocate(MemoryKind::device, bytes, "measuring collectives");
  const auto collectives = make_device_collectives(
      device, *ops, ranks, route,
      {.longest_slice = slice, .most_gathered = static_cast<std::size_t>(slice) * sizeof(float)}, &memory);
  const auto begin = device.create_event(Timing::on), end = device.create_event(Timing::on);
  stream->zero(memory.data(), bytes);
  ranks.barrier();
  // One of each kind, with slices of `elements`.
  const auto seconds = [&](std::int64_t elements) {
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(size), elements);
    const std::vector<std::int64_t> lengths(counts.size(), elements * static_cast<std::int64_t>(sizeof(float)));
    const auto offset = static_cast<std::size_t>(elements * ranks.rank()) * sizeof(float);
    auto* const all = static_cast<std::byte*>(memory.data());
    for (int i = -warm; i < rounds; ++i) {
      if (i == 0) stream->record(*begin);
      const SliceSum sum{Tensor(all, DType::f32, {elements * size}), counts,
                         Tensor(all + offset, DType::f32, {elements})};
      collectives->reduce_scatter_sum(*stream, std::span(&sum, 1), Accumulate::overwrite);
      collectives->all_gather(*stream, std::array{SliceGather{all + offset, lengths, all}});
    }
    stream->record(*end);
    end->synchronize();
    return end->seconds_since(*begin) / (2 * rounds);
  };
  const double latency = seconds(16), large = seconds(slice);
  CollectiveRates rates{.bytes = 0, .seconds = latency};
  rates.bytes = static_cast<double>(bytes) * (1 - 1.0 / size) / std::max(large - latency, 1e-9);
  std::vector<double> all(static_cast<std::size_t>(2 * size));
  const std::vector<std::int64_t> two(static_cast<std::size_t>(size), 2);
  const std::vector<double> own{rates.bytes, rates.seconds};
  ranks.all_gather(std::span<const double>(own), two, std::span(all));
  for (std::size_t i = 0; i < all.size(); i += 2) {
    rates.bytes = std::min(rates.bytes, all[i]);
    rates.seconds = std::max(rates.seconds, all[i + 1]);
  }
  return rates;
}

void use_rates_of_ranks(PlanningMachine& machine, Runtime& runtime, const NumberFormats& formats, RateUse use,
                        Communicator& ranks, CollectiveRoute route) {
  if (!machine.backend->own_processors) return;
  if (ranks.size() == 1) {
    use_cached_rates(machine, runtime, formats, use);
    return;
  }
  const std::optional<RateCache> cache = RateCache::of_user();
  const RateKey key = rate_key(runtime, formats, ranks.place().local_size);
  const std::optional<RateCache::Found> found = found_by_first(ranks, cache, key, use.fresh);
  MachineRates rates;
  if (found) {
    rates = found->rates;
    adamw_use_tuning(rates.adamw);
    machine.rates_origin = fmt::format("measured on {} (--profile fresh measures anew)", found->date);
  } else {
    ranks.barrier();  // all measure at once
    together(ranks, [&] { rates = machine.rates(); });
    rates = slowest(ranks, rates);
    machine.rates_origin = fmt::format("measured by {} ranks at once, the slowest of each", ranks.size());
    const std::time_t now = std::time(nullptr);
    if (cache && use.keep && ranks.rank() == 0) cache->store(key, profile_of(machine, rates, now), now);
  }
  rates.collectives = measure_collectives(runtime.device(), ranks, route);
  machine.rates = [rates] { return rates; };
}

}  // namespace so
