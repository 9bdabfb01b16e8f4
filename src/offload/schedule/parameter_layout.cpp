#include "offload/schedule/parameter_layout.h"

#include <algorithm>
#include <numeric>

#include "optim/moment_blocks.h"

namespace so {

ParameterLayout::ParameterLayout(std::vector<Parameter> parameters) : parameters_(std::move(parameters)) {
  int unit = 0;
  std::int64_t blocks = 0;
  for (int i = 0; i < count(); ++i) {
    const Parameter& p = parameters_[static_cast<std::size_t>(i)];
    SO_CHECK(p.shape.size() >= 1 && p.shape.size() <= 3, "'{}' has {} dimensions", p.name, p.shape.size());
    SO_CHECK(p.unit == unit || (i > 0 && p.unit == unit + 1), "unit {} of '{}' after {}", p.unit, p.name, unit);
    SO_CHECK(!p.joined || (i > 0 && p.unit == unit && p.shape.size() <= 2), "'{}' joins nothing", p.name);
    unit = p.unit;
    if (!p.joined) elements_ = (elements_ + alignment - 1) / alignment * alignment;
    SO_CHECK(
        !p.joined || p.trained == parameters_[static_cast<std::size_t>(i - 1)].trained || elements_ % alignment == 0,
        "'{}' begins between two cache lines, and its neighbour is frozen or it is", p.name);
    SO_CHECK(p.cut == 1 || (p.cut > 0 && p.cut % alignment == 0 && elements_ % alignment == 0),
             "'{}' begins at {} and has blocks of {} elements", p.name, elements_, p.cut);
    if (static_cast<int>(unit_ranges_.size()) <= unit) {
      if (!unit_ranges_.empty()) unit_ranges_.back().end = elements_;
      unit_ranges_.push_back({elements_, elements_});
      unit_parameters_.push_back({i, i});
    }
    ranges_.push_back({elements_, elements_ + p.size()});
    first_blocks_.push_back(blocks);
    blocks += moment_blocks(p.size());
    elements_ += p.size();
    parameter_elements_ += p.size();
    if (p.trained) trained_parameter_elements_ += p.size();
    unit_parameters_.back().second = i + 1;
  }
  first_blocks_.push_back(blocks);
  elements_ = (elements_ + alignment - 1) / alignment * alignment;
  if (!unit_ranges_.empty()) unit_ranges_.back().end = elements_;
  for (int u = 0; u < units(); ++u) {
    std::int64_t trained = 0;
    for (const Stretch& stretch : stretches(u)) trained += stretch.trained ? stretch.range.size() : 0;
    trained_by_unit_.push_back(trained);
    trained_elements_ += trained;
  }
  by_name_.resize(parameters_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0);
  std::sort(by_name_.begin(), by_name_.end(), [&](int a, int b) { return parameter(a).name < parameter(b).name; });
}

int ParameterLayout::find(std::string_view name) const {
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [&](int i, std::string_view wanted) { return parameter(i).name < wanted; });
  return found == by_name_.end() || parameter(*found).name != name ? -1 : *found;
}

std::int64_t ParameterLayout::trained_elements(int unit) const {
  return trained_by_unit_[static_cast<std::size_t>(unit)];
}

bool ParameterLayout::trains_any(int first, int count) const {
  for (int p = first; p < first + count; ++p)
    if (parameter(p).trained) return true;
  return false;
}

int ParameterLayout::first_trained_unit() const {
  int unit = 0;
  while (unit < units() && trained_elements(unit) == 0) ++unit;
  return unit;
}

std::vector<ParameterLayout::Stretch> ParameterLayout::stretches(int unit) const {
  std::vector<Stretch> all;
  const auto [first, last] = unit_parameters(unit);
  for (int p = first; p < last; ++p) {
    const Range own = range(p);
    if (all.empty() || all.back().trained != parameter(p).trained) {
      if (!all.empty()) all.back().range.end = own.begin;
      all.push_back({{all.empty() ? unit_range(unit).begin : own.begin, own.end}, parameter(p).trained});
    }
  }
  if (!all.empty()) all.back().range.end = unit_range(unit).end;
  return all;
}

std::vector<Range> ParameterLayout::gradient_ranges(int unit) const {
  std::vector<Range> kept;
  const auto [first, last] = unit_parameters(unit);
  for (int p = first; p < last;) {
    int end = p + 1;
    bool trained = parameter(p).trained;
    for (; end < last && parameter(end).joined; ++end) trained = trained || parameter(end).trained;
    const Range group{p == first ? unit_range(unit).begin : range(p).begin,
                      end == last ? unit_range(unit).end : range(end).begin};
    p = end;
    if (!trained) continue;
    if (!kept.empty() && kept.back().end == group.begin)
      kept.back().end = group.end;
    else
      kept.push_back(group);
  }
  return kept;
}

int ParameterLayout::first_ending_after(std::int64_t element) const {
  const auto found = std::upper_bound(ranges_.begin(), ranges_.end(), element,
                                      [](std::int64_t e, const Range& r) { return e < r.end; });
  return static_cast<int>(found - ranges_.begin());
}

std::int64_t ParameterLayout::cut_before(std::int64_t element, std::int64_t block) const {
  for (;;) {
    const int p = first_ending_after(element);
    if (p == count() || range(p).begin >= element) return element;
    const std::int64_t begin = range(p).begin, whole = std::lcm(parameter(p).cut, block);
    if (whole == 1 || begin % alignment == 0) return element - (element - begin) % whole;
    element = begin - 1;  // of the parameter that it is joined to
  }
}

std::int64_t ParameterLayout::longest_uncut(std::int64_t block) const {
  std::int64_t longest = alignment, open = 0;  // the last place for a cut
  for (int p = 0; p < count(); ++p) {
    const Range own = range(p);
    const std::int64_t end = (own.end + alignment - 1) / alignment * alignment,
                       whole = std::lcm(parameter(p).cut, block);
    if (whole == 1 || own.begin % alignment == 0) {
      open = own.begin + (own.size() - 1) / whole * whole;
      longest = std::max(longest, std::min(whole, end - own.begin));
    }
    longest = std::max(longest, end - open);
  }
  return longest;
}

ParameterLayout::BlockPlace ParameterLayout::block_at(std::int64_t element) const {
  const int p = first_ending_after(element);
  const std::int64_t first = first_blocks_[static_cast<std::size_t>(p)];
  if (p == count() || range(p).begin >= element) return {first, 0};
  const std::int64_t in_parameter = element - range(p).begin;
  return {first + in_parameter / moment_block, in_parameter % moment_block};
}

Range ParameterLayout::whole_blocks(Range range) const {
  range.begin -= block_at(range.begin).offset;
  if (const std::int64_t offset = block_at(range.end).offset; offset > 0)
    range.end = std::min(range.end - offset + moment_block, this->range(first_ending_after(range.end)).end);
  return range;
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
    const Parameter& parameter = parameters_[static_cast<std::size_t>(i - ranges_.begin())];
    if (!parameter.trained) continue;
    const Range part{std::max(i->begin, wanted.begin), std::min(i->end, wanted.end)};
    const auto continues = [&](const Run& run) {
      return run.range.end == part.begin && run.decay == parameter.decay &&
             run.lr_multiplier == parameter.lr_multiplier;
    };
    if (!result.empty() && continues(result.back()))
      result.back().range.end = part.end;
    else
      result.push_back({part, parameter.decay, parameter.lr_multiplier});
  }
  return result;
}

}  // namespace so
