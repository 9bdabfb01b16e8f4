// Ranks check that they agree on what must be the same on all of them before they work together.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ranks/communicator.h"

namespace so {

// A name as a user knows it ("--lr", "the data"), and its value.
using RankFacts = std::vector<std::pair<std::string, std::string>>;

// Throws Error on every rank, naming the first fact and the first rank whose value is not rank 0's. A collective; the
// names and their order are the same on every rank of one version of the program. `advice` ends the sentence.
void require_agreement(Communicator& ranks, const RankFacts& facts, const std::string& advice);

}  // namespace so
