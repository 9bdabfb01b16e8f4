#include "commands/rank_work.h"

#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "device/backend.h"
#include "ranks/binding.h"
#include "ranks/together.h"

namespace so {

void complete_ranks(RankOptions& options, const OptionOrigins& origins, int launched) {
  if (launched == 1) return;
  if (origins.given("gpus") && options.gpus != launched)
    fail("--gpus {}, but the launcher has started {} ranks: leave --gpus out", options.gpus, launched);
  options.gpus = launched;
}

void require_rank_device(Device& device, const Communicator& ranks) {
  if (ranks.size() > 1 && !backend_of(device).ranks)
    fail("--gpus {}: several ranks are supported with --device cpu alone as yet, not on {}", ranks.size(),
         device.name());
}

void require_record_each(Communicator& ranks, std::int64_t records, const std::string& file) {
  if (records >= ranks.size()) return;
  fail_on_all(fmt::format("{} ranks cannot share {}, which has {} record{} to work on: start at most {}", ranks.size(),
                          printable_path(file), records, records == 1 ? "" : "s", records));
}

int take_cores(Communicator& ranks, const RankOptions& options) {
  const RankCores cores = bind_ranks(ranks, {options.bind_cores_to_rank, options.cpu_list});
  if (!cores.line.empty()) log_info("{}", cores.line);
  if (const std::string line = host_nodes_line(); !line.empty()) log_info("{}", line);
  if (!cores.warning.empty()) log_warning("{}", cores.warning);
  return cores.cpus;
}

int rank_threads(const Communicator& ranks, int cpus, int asked) {
  return asked > 0 || ranks.size() == 1 ? asked : cpus;
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
