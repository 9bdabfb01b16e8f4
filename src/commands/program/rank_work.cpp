#include "commands/program/rank_work.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "device/backend.h"
#include "device/gpu_place.h"
#include "model/sequence_split.h"
#include "ranks/binding.h"
#include "ranks/collectives/route.h"
#include "ranks/together.h"

namespace so {

void complete_ranks(RankOptions& options, const OptionOrigins& origins, int launched) {
  if (launched == 1) return;
  if (origins.given("gpus") && options.gpus != launched)
    fail("--gpus {}, but the launcher has started {} ranks: leave --gpus out", options.gpus, launched);
  options.gpus = launched;
}

SequenceGroups sequence_groups(Communicator& ranks, Device& device, int size, CollectiveRoute route,
                               const DecoderSpec& spec, const std::string& model) {
  together(ranks, [&] { require_sequence_split(spec, size, model); });
  SequenceGroups groups;
  groups.group = ranks.rank() / size;
  groups.groups = ranks.size() / size;
  groups.place = {ranks.rank() % size, size};
  // Ranks whose options differ come to this too, and are told so later.
  auto exchange = std::make_unique<SequenceGroup>(ranks, size, device, route);
  if (size > 1) groups.exchange = std::move(exchange);
  return groups;
}

void require_record_each(Communicator& ranks, const SequenceGroups& groups, std::int64_t records,
                         const std::string& file) {
  if (records >= groups.groups) return;
  const char* of_them = groups.place.size == 1 ? "ranks" : "groups of ranks (--sequence_parallel_size)";
  fail_on_all(fmt::format("{} {} cannot share {}, which has {} record{} to work on: start at most {}", groups.groups,
                          of_them, printable_path(file), records, records == 1 ? "" : "s",
                          records * (ranks.size() / groups.groups)));
}

namespace {

bool may_share_gpu(CollectiveRoute asked) { return asked == CollectiveRoute::p2p || asked == CollectiveRoute::host; }

// This rank's GPU, or -1 where ranks work on the CPU.
int find_rank_gpu(const RankPlace& place, DeviceChoice device, CollectiveRoute route) {
  if (device == DeviceChoice::cpu) return -1;
  if (device == DeviceChoice::automatic && !choose_cuda(0)) return -1;
  if (const CudaSupport any = cuda_backend().find(0); !any.usable) fail("{}", any.reason);
  const int visible = gpu_count();
  // A launcher may have shown each rank its own GPU alone; that it is its own is looked at after.
  int gpu = visible == 1 ? 0 : place.local_rank;
  if (gpu >= visible && may_share_gpu(route)) gpu %= visible;
  if (gpu >= visible)
    fail("{} ranks of this host want a GPU each, and it has {}: start at most {} on it (--gpus {})", place.local_size,
         visible, visible, visible);
  if (const CudaSupport own = cuda_backend().find(gpu); !own.usable) fail("{}", own.reason);
  return gpu;
}

// Every rank has a GPU of its own, or those that share one may; or none has any. Returns how many have this rank's.
int require_own_gpus(const Communicator& ranks, const std::vector<std::string>& gpus, CollectiveRoute route) {
  const auto self = static_cast<std::size_t>(ranks.rank());
  int sharing = 0;
  for (std::size_t r = 0; r < gpus.size(); ++r) {
    if (gpus[r].empty() != gpus[0].empty())
      fail_on_all(
          fmt::format("rank {} has a usable GPU, and rank {} has none: use --device cpu, or start ranks only "
                      "where there are GPUs (--device cuda says what is missing)",
                      gpus[0].empty() ? r : 0, gpus[0].empty() ? 0 : r));
    const auto first = static_cast<std::size_t>(std::find(gpus.begin(), gpus.end(), gpus[r]) - gpus.begin());
    if (first != r && !gpus[r].empty() && !may_share_gpu(route))
      fail_on_all(
          fmt::format("ranks {} and {} would have the same GPU: start as many ranks as a host has GPUs, or let "
                      "them share it, to try a run (--collectives p2p)",
                      first, r));
    sharing += gpus[r] == gpus[self] ? 1 : 0;
  }
  return gpus[self].empty() ? 1 : sharing;
}

// Says which GPU one of the ranks' cannot copy to, as the end of a sentence; empty if all reach all. A collective.
std::string missing_link(Communicator& ranks, int gpu) {
  if (ranks.place().hosts > 1) return "they are on several hosts";
  const std::vector<std::string> identities = ranks.all_gather(gpu_identity(gpu));
  const std::vector<std::string> missing = gather_texts(ranks, [&]() -> std::string {
    for (std::size_t r = 0; r < identities.size(); ++r)
      if (!gpu_reaches(gpu, identities[r]))
        return fmt::format(
            "rank {}'s does not reach rank {}'s, for want of a link or because CUDA_VISIBLE_DEVICES hides it",
            ranks.rank(), r);
    return {};
  });
  const auto first =
      std::find_if(missing.begin(), missing.end(), [](const std::string& text) { return !text.empty(); });
  return first == missing.end() ? "" : *first;
}

// Returns what ranks on GPUs use if this one was asked to use `asked`. Throws Error on all ranks if they cannot. This
// is a collective, in which ranks that were asked for different ones meet.
CollectiveRoute settle_route(Communicator& ranks, int gpu, CollectiveRoute asked) {
  const std::string missing = missing_link(ranks, gpu);
  CollectiveRoute route = asked;
  if (asked == CollectiveRoute::automatic) route = missing.empty() ? CollectiveRoute::p2p : CollectiveRoute::nccl;
  together(ranks, [&] {
    if (route == CollectiveRoute::p2p && !missing.empty())
      fail("--collectives p2p: GPUs do not reach each other ({}); use --collectives nccl", missing);
    if (std::string reason; route == CollectiveRoute::nccl && !have_nccl(reason)) fail("{}", reason);
  });
  return route;
}

}  // namespace

RankSeat take_seat(Communicator& ranks, DeviceChoice device, const RankOptions& options) {
  RankSeat seat{.device = device};
  BindOptions bind{options.bind_cores_to_rank, options.cpu_list, {}};
  if (ranks.size() > 1) {
    int gpu = -1;
    const std::vector<std::string> gpus = gather_texts(ranks, [&]() -> std::string {
      gpu = find_rank_gpu(ranks.place(), device, options.collectives);
      return gpu < 0 ? "" : fmt::format("{} {}", ranks.place().host, gpu_identity(gpu));
    });
    seat.gpu_ranks = require_own_gpus(ranks, gpus, options.collectives);
    if (gpu >= 0) seat.collectives = settle_route(ranks, gpu, options.collectives);
    seat.device = gpu < 0 ? DeviceChoice::cpu : DeviceChoice::cuda;
    seat.gpu = std::max(gpu, 0);
    if (gpu >= 0) bind.near = cpus_near(gpu_pci_address(gpu));
  }
  const RankCores cores = bind_ranks(ranks, bind);
  if (!cores.line.empty()) log_info("{}", cores.line);
  if (const std::string line = host_nodes_line(); !line.empty()) log_info("{}", line);
  if (!cores.warning.empty()) log_warning("{}", cores.warning);
  seat.cpus = cores.cpus;
  seat.own_cpus = ranks.size() == 1 || cores.by != RankCores::By::nobody;
  return seat;
}

int rank_threads(const Communicator& ranks, const RankSeat& seat, int asked) {
  if (asked > 0 || ranks.size() == 1) return asked;
  if (seat.device == DeviceChoice::cpu) return seat.cpus;
  // Beside a GPU the runtime leaves a core to the thread that feeds it, of those that are the rank's own.
  return seat.own_cpus ? 0 : std::max(1, seat.cpus - 1);
}

RankFacts option_facts(OptionsView options) {
  RankFacts facts{{"the program's version", SO_VERSION}};
  const std::set<std::string_view> own{"cpu_threads", "bind_cores_to_rank", "cpu_list", "cache_dir", "verbose",
                                       "quiet"};
  for (const OptionSpec& spec : options.rows().specs())
    if (!own.contains(spec.name)) facts.emplace_back("--" + spec.name, to_string(options.get(spec)));
  return facts;
}

void require_same_run(Communicator& ranks, const RankFacts& facts) {
  require_agreement(ranks, facts, "start all ranks with the same program, options and files");
}

std::vector<TokenDataset> open_by_ranks(Communicator& ranks, std::span<DatasetSource> sources, const DataPart& files) {
  // Slower than any tokenizer; looking for a cache and waiting for another program's comes on top.
  constexpr double bytes_a_second = 100e3, on_top = 1800;
  double seconds = on_top;
  for (const std::filesystem::path& file : files) {
    std::error_code none;  // a file that cannot be asked cannot be opened either
    if (const auto bytes = std::filesystem::file_size(file, none); !none)
      seconds += static_cast<double>(bytes) / bytes_a_second;
  }
  const TimeLimitAtLeast limit(ranks, seconds);
  if (ranks.rank() > 0) ranks.barrier();
  std::vector<TokenDataset> data;
  for (DatasetSource& source : sources) data.push_back(source.open());
  if (ranks.rank() == 0) ranks.barrier();
  return data;
}

}  // namespace so
