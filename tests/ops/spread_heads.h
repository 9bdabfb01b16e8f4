// Heads inside wider rows, with columns of no head before, between and after them, for the tests of ops that take such.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ops/ops.h"
#include "support/random_tensors.h"

namespace so::test {

struct HeadLayout {
  std::int64_t n, heads, head_dim;
  std::int64_t margin = 0, gap = 0;
  std::int64_t width() const { return margin + heads * (head_dim + gap) + margin; }
  std::string name() const {
    return fmt::format("{} rows, {} heads of {}, margin {}, gap {}", n, heads, head_dim, margin, gap);
  }
};

class SpreadHeads {
 public:
  // Random everywhere.
  SpreadHeads(Stream& s, DType dtype, const HeadLayout& layout, unsigned seed, double magnitude = 1)
      : layout_(layout),
        rows_(random_tensor(s, dtype, {layout.n, layout.width()}, seed, magnitude)),
        begin_(rows_.values(s)) {}

  Heads heads() const {
    return {rows_, layout_.margin, layout_.heads, layout_.head_dim,
            layout_.gap > 0 ? layout_.head_dim + layout_.gap : 0};
  }
  operator Heads() const { return heads(); }
  std::vector<std::byte> bytes(Stream& s) const { return rows_.bytes(s); }

  // The heads' elements now, [n, heads, head_dim].
  std::vector<double> values(Stream& s) const {
    const std::vector<double> rows = rows_.values(s);
    std::vector<double> dense(size());
    each([&](std::size_t at, std::size_t i) { dense[i] = rows[at]; });
    return dense;
  }
  // The heads are what is expected, and the columns beside them what they were.
  void expect(Stream& s, const std::vector<double>& expected, const std::vector<double>& allowed,
              const std::string& what) const {
    ASSERT_EQ(expected.size(), size());
    std::vector<double> rows = begin_, off(rows.size(), 0.0);
    each([&](std::size_t at, std::size_t i) { rows[at] = expected[i], off[at] = allowed[i]; });
    expect_within(rows_.values(s), rows, off, what);
  }

 private:
  std::size_t size() const { return static_cast<std::size_t>(layout_.n * layout_.heads * layout_.head_dim); }
  template <class F>
  void each(const F& f) const {
    std::size_t i = 0;
    for (std::int64_t n = 0; n < layout_.n; ++n)
      for (std::int64_t h = 0; h < layout_.heads; ++h)
        for (std::int64_t d = 0; d < layout_.head_dim; ++d)
          f(static_cast<std::size_t>(n * layout_.width() + layout_.margin + h * (layout_.head_dim + layout_.gap) + d),
            i++);
  }

  HeadLayout layout_;
  TestTensor rows_;
  std::vector<double> begin_;
};

}  // namespace so::test
