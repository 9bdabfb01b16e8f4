#include "commands/report/thinning.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace so {
namespace {

// The points of [begin, end) that stand for all of them, in order.
void add_column(std::span<const double> x, std::span<const double> y, std::size_t begin, std::size_t end, Series& out) {
  std::size_t least = end, most = end, gap = end;
  for (std::size_t i = begin; i < end; ++i) {
    if (!std::isfinite(y[i])) {
      gap = gap == end ? i : gap;
      continue;
    }
    if (least == end || y[i] < y[least]) least = i;
    if (most == end || y[i] > y[most]) most = i;
  }
  std::array<std::size_t, 5> kept{begin, least, most, gap, end - 1};
  std::sort(kept.begin(), kept.end());
  const auto last = std::unique(kept.begin(), kept.end());
  for (auto i = kept.begin(); i != last && *i < end; ++i) out.add(x[*i], y[*i]);
}

}  // namespace

Series thinned(std::span<const double> x, std::span<const double> y, std::size_t columns) {
  Series out;
  const std::size_t count = x.size();
  if (count <= 5 * columns) {
    out.x.assign(x.begin(), x.end());
    out.y.assign(y.begin(), y.end());
    return out;
  }
  for (std::size_t column = 0; column < columns; ++column)
    add_column(x, y, count * column / columns, count * (column + 1) / columns, out);
  return out;
}

Series means(std::span<const double> x, std::span<const double> y, std::size_t columns, std::size_t* points) {
  Series out;
  const std::size_t each = std::max<std::size_t>(1, (x.size() + columns - 1) / columns);
  if (points != nullptr) *points = each;
  for (std::size_t begin = 0; begin < x.size(); begin += each) {
    double sum = 0, places = 0, finite = 0;
    for (std::size_t i = begin; i < std::min(begin + each, x.size()); ++i) {
      if (!std::isfinite(y[i])) continue;
      sum += y[i];
      places += x[i];
      ++finite;
    }
    if (finite > 0) out.add(places / finite, sum / finite);
  }
  return out;
}

}  // namespace so
