#include "plan/machine/rank_share.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace so {
namespace {

using Facts = std::array<std::uint64_t, 4>;

std::vector<Facts> gather(Communicator& ranks, const Facts& own) {
  const auto size = static_cast<std::size_t>(ranks.size());
  std::vector<Facts> all(size);
  const std::vector<std::int64_t> counts(size, 1);
  ranks.all_gather(std::span(&own, 1), counts, std::span(all));
  return all;
}

}  // namespace

void share_machine(Communicator& ranks, PlanningMachine& machine, int gpu_ranks) {
  if (ranks.size() == 1) return;
  const auto part = [&](std::optional<std::size_t>& bytes) {
    if (bytes) *bytes /= static_cast<std::size_t>(gpu_ranks);
  };
  part(machine.device_memory);
  part(machine.whole_device_memory);
  part(machine.device_cap);
  const auto share = static_cast<std::size_t>(ranks.place().local_size);
  if (machine.host_cap) *machine.host_cap /= share;
  std::size_t held = 0;
  const auto least = [](std::optional<std::size_t>& bytes, std::uint64_t of_rank) {
    if (bytes) *bytes = std::min<std::size_t>(*bytes, of_rank);
  };
  for (const Facts& facts :
       gather(ranks, {machine.host.available / share, machine.held.value_or(resident_bytes()),
                      machine.device_memory.value_or(0), machine.whole_device_memory.value_or(0)})) {
    least(machine.device_memory, facts[2]);
    least(machine.whole_device_memory, facts[3]);
    machine.host.available = std::min<std::size_t>(machine.host.available, facts[0]);
    held = std::max<std::size_t>(held, facts[1]);
  }
  machine.held = held;
}

HostMemory share_of_host(Communicator& ranks) {
  HostMemory host = available_host_memory();
  if (ranks.size() == 1) return host;
  const auto share = static_cast<std::size_t>(ranks.place().local_size);
  for (const Facts& facts : gather(ranks, {host.available / share, 0, 0, 0}))
    host.available = std::min<std::size_t>(host.available, facts[0]);
  host.limited_by += fmt::format(", shared by {} ranks", share);
  return host;
}

}  // namespace so
