// The recurrence of the gated delta rule in a block of columns of a head's state, in SIMD. A column of the state is a
// recurrence by itself: the tokens of a chunk go through one block after another, each of which stays in the first
// cache. Columns beyond the last are zeros.
//
// With a token's decay g, rate b, key k, query q and value v, and the state S before it:
//   T = g S,  e = v - T^T k,  u = b e,  S' = T + k u^T,  out = S'^T q.
// Backward, with E the gradient of S' by later tokens:
//   D = E + q dout^T,  du = D^T k,  dv = b du,  db = <du, e>,  dT = D - k dv^T,
//   dq = S' dout,  dk = D u - T dv,  d(log g) = <dT, T>,  and the token before has E = g dT.
// Sums over columns, which dq, dk, db and d(log g) are, are added to what earlier blocks have left.
#pragma once

#include <cstdint>

namespace so {

// Columns of a block, and into how many parts sums over columns are left. It is the CPU's vector length that decides.
std::int64_t delta_block_width();
std::int64_t delta_sum_parts();

// What a chunk's tokens bring to every block of a value head.
struct DeltaTokens {
  std::int64_t count;
  std::int64_t k_dim;         // even: an odd one has a row of zeros more
  std::int64_t pitch;         // from a token's row of v, out, errors, dout and dv to the next: a multiple of width
  const float *q, *k;         // [count, k_dim], as the recurrence takes them: normalised, q also scaled
  const float* qk;            // [count]: their products
  const float *left, *rates;  // [count]: g and b
};

// state [k_dim, width] goes through the tokens; v and out are rows of `width` columns.
void delta_forward_columns(const DeltaTokens& tokens, float* state, const float* v, float* out);

// What the backward pass needs of a chunk that begins with this state: every token's T, [count, k_dim, width], and e.
void delta_remake_columns(const DeltaTokens& tokens, const float* state, const float* v, float* states, float* errors);

struct DeltaColumnsGrad {
  const float *states, *errors;  // as above
  float* dstate;                 // [k_dim, width]: E of the last token, becomes that of the token before the first
  const float* dout;
  float* dv;  // may be dout
  // [count, k_dim / 2, 4, parts], added to: of two rows dq and dq, dk and dk, each in parts that are still to be
  // summed: what T has in dq, and E and T in dk. What is missing in both is <u, dout>, [count], times k and q.
  float *dq_dk, *u_dout;
  float *ddecay, *drate;  // [count], added to
};
void delta_backward_columns(const DeltaTokens& tokens, const DeltaColumnsGrad& grad);

}  // namespace so
