// Long series made short enough to draw.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace so {

struct Series {
  std::vector<double> x, y;
  std::size_t size() const { return x.size(); }
  void add(double at, double value) {
    x.push_back(at);
    y.push_back(value);
  }
};

// The same line for a drawing of `columns` columns: of each the first and last point, the least and the greatest, and
// one that is not finite if there is any. At most five points a column; a series that has no more comes back whole. `x`
// and `y` are of one length.
Series thinned(std::span<const double> x, std::span<const double> y, std::size_t columns);

// A point for each of at most `columns` runs of as many points each (`*points` of them; the last run may have fewer):
// the mean of those that are finite, at the mean place. A run without one has no point.
Series means(std::span<const double> x, std::span<const double> y, std::size_t columns, std::size_t* points = nullptr);

}  // namespace so
