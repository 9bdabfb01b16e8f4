#include "offload/schedule/parameter_layout.h"

#include <algorithm>
#include <numeric>

namespace so {

ParameterLayout::ParameterLayout(std::vector<Parameter> parameters) : parameters_(std::move(parameters)) {
  int unit = 0;
  for (int i = 0; i < count(); ++i) {
    const Parameter& p = parameters_[static_cast<std::size_t>(i)];
    SO_CHECK(p.shape.size() >= 1 && p.shape.size() <= 3, "'{}' has {} dimensions", p.name, p.shape.size());
    SO_CHECK(p.unit == unit || (i > 0 && p.unit == unit + 1), "unit {} of '{}' after {}", p.unit, p.name, unit);
    SO_CHECK(!p.joined || (i > 0 && p.unit == unit && p.shape.size() <= 2), "'{}' joins nothing", p.name);
    unit = p.unit;
    if (!p.joined) elements_ = (elements_ + alignment - 1) / alignment * alignment;
    if (static_cast<int>(unit_ranges_.size()) <= unit) {
      if (!unit_ranges_.empty()) unit_ranges_.back().end = elements_;
      unit_ranges_.push_back({elements_, elements_});
      unit_parameters_.push_back({i, i});
    }
    ranges_.push_back({elements_, elements_ + p.size()});
    elements_ += p.size();
    parameter_elements_ += p.size();
    unit_parameters_.back().second = i + 1;
  }
  elements_ = (elements_ + alignment - 1) / alignment * alignment;
  if (!unit_ranges_.empty()) unit_ranges_.back().end = elements_;
  by_name_.resize(parameters_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0);
  std::sort(by_name_.begin(), by_name_.end(), [&](int a, int b) { return parameter(a).name < parameter(b).name; });
}

int ParameterLayout::find(std::string_view name) const {
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [&](int i, std::string_view wanted) { return parameter(i).name < wanted; });
  return found == by_name_.end() || parameter(*found).name != name ? -1 : *found;
}

int ParameterLayout::first_ending_after(std::int64_t element) const {
  const auto found = std::upper_bound(ranges_.begin(), ranges_.end(), element,
                                      [](std::int64_t e, const Range& r) { return e < r.end; });
  return static_cast<int>(found - ranges_.begin());
}

int ParameterLayout::unit_of(std::int64_t element) const {
  const auto found = std::upper_bound(unit_ranges_.begin(), unit_ranges_.end(), element,
                                      [](std::int64_t e, const Range& r) { return e < r.end; });
  SO_CHECK(element >= 0 && found != unit_ranges_.end(), "element {} of {}", element, elements_);
  return static_cast<int>(found - unit_ranges_.begin());
}

Tensor ParameterLayout::view(void* flat, DType dtype, int first, int count) const {
  return view_at(static_cast<std::byte*>(flat) + static_cast<std::size_t>(range(first).begin) * size_of(dtype), dtype,
                 first, count);
}

Tensor ParameterLayout::view_at(void* data, DType dtype, int first, int count) const {
  const Parameter& p = parameter(first);
  if (count == 1) return Tensor(data, dtype, p.shape);
  std::int64_t rows = p.shape[0];
  for (int i = first + 1; i < first + count; ++i) {
    const Parameter& next = parameter(i);
    SO_CHECK(next.joined && next.shape.size() == p.shape.size() && (p.shape.size() == 1 || next.shape[1] == p.shape[1]),
             "'{}' does not continue '{}'", next.name, p.name);
    rows += next.shape[0];
  }
  return p.shape.size() == 1 ? Tensor(data, dtype, {rows}) : Tensor(data, dtype, {rows, p.shape[1]});
}

std::vector<ParameterLayout::Run> ParameterLayout::runs(Range wanted) const {
  std::vector<Run> result;
  auto i = ranges_.begin() + first_ending_after(wanted.begin);
  for (; i != ranges_.end() && i->begin < wanted.end; ++i) {
    const bool decay = parameters_[static_cast<std::size_t>(i - ranges_.begin())].decay;
    const Range part{std::max(i->begin, wanted.begin), std::min(i->end, wanted.end)};
    if (!result.empty() && result.back().decay == decay && result.back().range.end == part.begin)
      result.back().range.end = part.end;
    else
      result.push_back({part, decay});
  }
  return result;
}

}  // namespace so
