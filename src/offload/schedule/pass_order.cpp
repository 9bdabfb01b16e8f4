#include "offload/schedule/pass_order.h"

#include "base/error.h"

namespace so {

std::vector<BackwardStep> backward_steps(int units, int first_trained, const std::vector<bool>& remade) {
  SO_CHECK(remade.empty() || static_cast<int>(remade.size()) == units, "the inputs of {} of {} units", remade.size(),
           units);
  const auto is_remade = [&](int unit) {
    return !remade.empty() && unit < units && remade[static_cast<std::size_t>(unit)];
  };
  SO_CHECK(first_trained >= units || !is_remade(first_trained), "the first trained unit, {}, keeps no input",
           first_trained);
  std::vector<BackwardStep> steps;
  for (int unit = units - 1; unit >= first_trained; --unit) {
    if (is_remade(unit) && !is_remade(unit + 1)) {
      int first = unit;
      while (is_remade(first)) --first;
      for (int again = first; again < unit; ++again) steps.push_back({again, true});
    }
    steps.push_back({unit, false});
  }
  return steps;
}

PassOrder::PassOrder(int units, int first_trained, const std::vector<bool>& remade) {
  SO_CHECK(units > 0, "a pass through {} units", units);
  for (int unit = 0; unit < units; ++unit) units_.push_back(unit);
  for (const BackwardStep& step : backward_steps(units, first_trained, remade))
    if (step.unit != units - 1) units_.push_back(step.unit);
  end();
}

void PassOrder::require(int unit) {
  if (in_use_++ > 0) return;
  if (ahead(1) == unit)
    at_ = (at_ + 1) % units_.size();
  else if (units_[at_] != unit)
    at_ = static_cast<std::size_t>(unit);
}

}  // namespace so
