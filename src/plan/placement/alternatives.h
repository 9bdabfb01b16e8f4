// The alternatives that a plan chose among, for people who ask why it chose as it did.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "options/plan_choice.h"

namespace so {

struct ChosenPlan;
struct PlacementInputs;

// One way to go, with the rest as in the plan; for another split the rest is chosen again.
struct Alternative {
  std::string what;
  bool chosen = false;
  double seconds = 0;                            // of a step
  double slower_seconds = 0;                     // of a step on a slower host (Judge::hosts)
  double score = 0;                              // by which plans are chosen (Judge::score())
  std::size_t device_bytes = 0, host_bytes = 0;  // 0: not asked for
  std::size_t device_short = 0, host_short = 0;  // by how much it does not fit
  bool fits() const { return device_short == 0 && host_short == 0; }
};

// Whether there is anything to choose with `ranks`. Several gather weights, and one keeps or streams them.
bool is_open(PlanChoice choice, int ranks);

// A few of the ways that there are, in order of their size, the chosen one among them. `describe_keep` names an index
// of inputs.keeps. Of `cast`, the other side is described by `other_cast`: inputs with its sizes and rates; null: there
// is none.
std::vector<Alternative> alternatives(const PlacementInputs& inputs, const ChosenPlan& plan, PlanChoice choice,
                                      const std::function<std::string(std::int64_t keep)>& describe_keep,
                                      const PlacementInputs* other_cast);

// A line each, or two where `columns` are few: what, its step, its memory, why it lost. "  > " marks the chosen one.
std::string alternatives_table(std::span<const Alternative> alternatives, std::size_t columns);
// Why an alternative was not chosen: "does not fit: 3.1 GB of device memory short", "0.012 s slower". A quicker one
// lost because it was not asked for, is slower on a slower host, or is quicker only since the device runs less AdamW.
std::string why_not(const Alternative& alternative, const Alternative& chosen);

}  // namespace so
