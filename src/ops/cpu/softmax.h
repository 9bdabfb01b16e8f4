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

// Softmax backward for one row of attention: scores become probabilities, p = exp(score - lse), and dp, the gradients
// of the probabilities, become those of the scores, p (dp - delta), where delta = sum of p dp over the whole row.
void softmax_grad_row(float* scores, float* dp, std::int64_t count, float lse, float delta);

}  // namespace so
