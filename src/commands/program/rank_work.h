// Steps that commands which run on several ranks have in common.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/option_table.h"
#include "data/batches.h"
#include "data/data_files.h"
#include "data/dataset.h"
#include "device/device.h"
#include "model/spec.h"
#include "offload/sequence_group.h"
#include "options/option_groups.h"
#include "options/run_request.h"
#include "ranks/agreement.h"
#include "ranks/communicator.h"

namespace so {

// Takes over how many ranks a launcher has started (1: there is none). Throws Error if the options ask for others.
void complete_ranks(RankOptions& options, const OptionOrigins& origins, int launched);

// The ranks of a run as its batches know them: groups that split the tokens of their micro-batches, of one rank each
// where nothing is split.
struct SequenceGroups {
  std::int64_t group = 0, groups = 1;       // this rank's, and all
  SequencePlace place;                      // of this rank in its group
  std::unique_ptr<SequenceGroup> exchange;  // null where nothing is split
};
// Throws Error on all ranks unless the model's heads can be shared so, and the GPUs be connected. A collective.
SequenceGroups sequence_groups(Communicator& ranks, Device& device, int size, CollectiveRoute route,
                               const DecoderSpec& spec, const std::string& model);

// Throws Error on all ranks unless each group can have a record of the file, of which all have been found to see the
// same.
void require_record_each(Communicator& ranks, const SequenceGroups& groups, std::int64_t records,
                         const std::string& file);

// Where a rank works.
struct RankSeat {
  DeviceChoice device = DeviceChoice::automatic;
  int gpu = 0;                                          // its number among the visible ones
  int gpu_ranks = 1;                                    // that share it
  int cpus = 1;                                         // that the rank may use
  bool own_cpus = true;                                 // and no other rank
  CollectiveRoute collectives = CollectiveRoute::nccl;  // never automatic
};
// Gives each rank a GPU of its own, or none has one, and cores of its own, near it, unless the options say otherwise;
// logs a line about the cores. To be called before the threads are made that shall keep to them. Throws Error on all
// ranks if some have no GPU, several have one (but where --collectives p2p or host lets them), or the way of
// collectives is not there. On one rank this leaves the device to the runtime. A collective.
RankSeat take_seat(Communicator& ranks, DeviceChoice device, const RankOptions& options);
// Threads of a rank that was `asked` for a number; 0 leaves it to the runtime.
int rank_threads(const Communicator& ranks, const RankSeat& seat, int asked);

// The program's version, and the options that must be the same on every rank: all but those that concern a rank alone.
RankFacts option_facts(OptionsView options);
// Throws Error on all ranks, naming the first fact in which one differs from rank 0.
void require_same_run(Communicator& ranks, const RankFacts& facts);

// Opens each source, on rank 0 first: where the tokens can be kept, the other ranks find them. A collective; the sizes
// of the `files` that the sources read say how long rank 0 may take.
std::vector<TokenDataset> open_by_ranks(Communicator& ranks, std::span<DatasetSource> sources, const DataPart& files);

}  // namespace so
