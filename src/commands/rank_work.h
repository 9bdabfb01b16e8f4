// Steps that commands which run on several ranks have in common.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/options.h"
#include "data/data_files.h"
#include "data/dataset.h"
#include "device/device.h"
#include "options/option_groups.h"
#include "ranks/agreement.h"
#include "ranks/communicator.h"

namespace so {

// Takes over how many ranks a launcher has started (1: there is none). Throws Error if the options ask for others.
void complete_ranks(RankOptions& options, const OptionOrigins& origins, int launched);

// Throws Error where several ranks are to work on a device that has no collectives as yet.
void require_rank_device(Device& device, const Communicator& ranks);

// Throws Error on all ranks unless each can have a record of the file, of which all have been found to see the same.
void require_record_each(Communicator& ranks, std::int64_t records, const std::string& file);

// Gives each rank cores of its own, unless the options say otherwise, logs a line that says so, and returns the CPUs
// that this rank may use. To be called before the threads are made that shall keep to them. A collective.
int take_cores(Communicator& ranks, const RankOptions& options);
// Threads of a rank that may use so many CPUs and was asked for so many threads: 0 leaves the number to the runtime.
int rank_threads(const Communicator& ranks, int cpus, int asked);

// The program's version, and the options that must be the same on every rank: all but those that concern a rank alone.
RankFacts option_facts(OptionsView options);
// Throws Error on all ranks, naming the first fact in which one differs from rank 0.
void require_same_run(Communicator& ranks, const RankFacts& facts);

// Opens each source, on rank 0 first: where the tokens can be kept, the other ranks find them. A collective; the sizes
// of the `files` that the sources read say how long rank 0 may take.
std::vector<TokenDataset> open_by_ranks(Communicator& ranks, std::span<DatasetSource> sources, const DataPart& files);

}  // namespace so
