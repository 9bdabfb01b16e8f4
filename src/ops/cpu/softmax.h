// The row arithmetic of softmax, in SIMD. NaN in, NaN out: a poisoned score is never mistaken for a small one.
// Sums are taken in an order given by the count alone (and the CPU's vector length).
#pragma once

#include <cstdint>

namespace so {

// The largest of x, -infinity for none. NaNs may be passed over: exp_row finds them.
float row_max(const float* x, std::int64_t count);

// x = exp(x - shift) in place; returns the sum. x - shift at most 88. Error of an element: 2 units in the last place.
float exp_row(float* x, std::int64_t count, float shift);

// x *= factor.
void scale_row(float* x, std::int64_t count, float factor);

// sum of x y.
float dot_row(const float* x, const float* y, std::int64_t count);

// A tile of scores of causal attention: row r sees the `window` (>= 1) columns before end = first + r % period, those
// that there are of [0, width), and no others. (Rows are stacked, a head's worth of `period` rows after another.)
// `stride` is a multiple of tile_padding at least `width`; what lies between is scratch.
struct ScoreTile {
  float* data;
  std::int64_t rows, width, stride, first, period, window;
};
inline constexpr std::int64_t tile_padding = 16;

// One step of the softmax that sees the columns of a row tile by tile. Scores become exp(score - largest), 0 where not
// seen; largest[r] and total[r], the sum of exponentials so far, are brought up to date, and so are the sums that
// earlier tiles have left in sums[r, 0..dim). `first_tile`: there are none, and largest and total are written only.
void softmax_tile(const ScoreTile& scores, float* largest, float* total, float* sums, std::int64_t dim,
                  bool first_tile);

// Softmax backward: scores become probabilities, p = exp(score - lse[r]), and dp, of the same layout, the gradients of
// the probabilities, become those of the scores, p (dp - delta[r]); both 0 where not seen.
void softmax_grad_tile(const ScoreTile& scores, float* dp, const float* lse, const float* delta);

}  // namespace so
