// A refusal tells a run that does not fit what is short, and the smallest changes of the request that would make it
// fit, each found by planning again with it.
#pragma once

#include <vector>

#include "base/error.h"
#include "plan/plan_change.h"
#include "plan/plan_question.h"

namespace so {

// The smallest change of each kind, those first that change no result, with the rates of as many as question.seconds
// allow. Where no change of one kind helps but more memory, changes of several kinds together. Host memory is that of
// a machine that is sold (sold_memory), except where the machine has enough; of the device no more is asked than
// question.askable.
std::vector<PlanChange> find_changes(const PlanQuestion& question);

// An Error with what would help. Its message names the first of them; table() is for the log.
class PlanRefusal : public Error {
 public:
  PlanRefusal(const MemoryRefusal& refusal, std::vector<PlanChange> changes);
  const std::vector<PlanChange>& changes() const { return changes_; }

 private:
  std::vector<PlanChange> changes_;
};

// Refuses a question that does not fit: logs what is short and what would help, as a detail the memory by name, and
// throws.
[[noreturn]] void refuse(const PlanQuestion& question, const MemoryRefusal& refusal);
// Refuses a question whose model is too large for the machine by its config alone, before its files are opened.
void state_or_refuse(const PlanQuestion& question);
// plan(asked), or refuse().
TrainingPlan plan_or_refuse(const PlanQuestion& question);

}  // namespace so
