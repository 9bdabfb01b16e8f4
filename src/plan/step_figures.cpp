#include "plan/step_figures.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace so {
namespace {

constexpr double much_longer = 1.5;

// The lower of the two in the middle: of two steps the shorter one is as it should be.
double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double seconds_for_work(const MeasuredStep& step) { return step.overlap.seconds / std::max(step.model_flops, 1.0); }

}  // namespace

StepFigures figures_of(std::span<const MeasuredStep> steps) {
  StepFigures figures;
  if (steps.empty()) return figures;
  std::vector<double> seconds, for_work;
  for (const MeasuredStep& step : steps) {
    seconds.push_back(step.overlap.seconds);
    for_work.push_back(seconds_for_work(step));
  }
  const double usual = lower_median(std::move(seconds)), usual_for_work = lower_median(std::move(for_work));
  for (const MeasuredStep& step : steps) {
    if (step.overlap.seconds > much_longer * usual && seconds_for_work(step) > much_longer * usual_for_work) {
      ++figures.left_out;
      continue;
    }
    ++figures.steps;
    figures.sum.overlap += step.overlap;
    figures.sum.tokens += step.tokens;
    figures.sum.model_flops += step.model_flops;
    figures.sum.reference_flops += step.reference_flops;
  }
  return figures;
}

void StepHistory::add(const MeasuredStep& step) {
  steps_.push_back(step);
  if (steps_.size() > most) steps_.pop_front();
}

StepFigures StepHistory::figures() const { return figures_of(std::vector<MeasuredStep>(steps_.begin(), steps_.end())); }

}  // namespace so
