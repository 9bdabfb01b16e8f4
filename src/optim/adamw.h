// AdamW on the CPU (Loshchilov & Hutter, "Decoupled Weight Decay Regularization", 2019; Kingma & Ba, 2015), the
// semantics of torch.optim.AdamW. One pass over memory: gradient in, state in, state out, compute weight out.
//
// The result is a contract to the last bit: every instruction set, every number of threads, any alignment and the CUDA
// kernel give the same bits for the same input. fl() is one IEEE-754 binary32 operation rounded to nearest-even,
// subnormals kept; fma() is fused, rounded once. CUDA: __fmul_rn, __fadd_rn, __fsub_rn, __fmaf_rn, __fsqrt_rn,
// __fdiv_rn, and no -ftz=true / --use_fast_math. For each element, in this order:
//
//   g      = fl(grad_scale * gradient)                 a bf16 gradient is widened first, exactly
//   m'     = fma(one_minus_beta1, fl(g - m), m)        the lerp of torch
//   v'     = fma(fl(one_minus_beta2 * g), g, fl(beta2 * v))
//   denom  = fma(fl(sqrt(v')), inv_sqrt_bias2, epsilon)
//   q      = fl(m' / denom)
//   u      = fma(step_size, q, fl(decay * p))
//   p'     = fl(p - u)
//   weight = p' (f32), or p' rounded to bf16 to nearest-even, NaN quieted as base/dtype.h does it
//
// Moments are kept in fp32, both in bf16, or both in 8 bits (optim/moment_blocks.h): m and v are then widened first,
// exactly, and m' and v' rounded when they are stored, to bf16 as weights are; p' comes from the m' and v' above,
// before that rounding. 8 bits are dithered and serve any beta2. A v in bf16 is safe for a small beta2 only: where 1 -
// beta2 <= 2^-9 = 0.00195 all of a step's decay is rounded away, so at the usual 0.999 it never falls and steps stay as
// small as the largest gradients made them; from 1 - beta2 > 2^-8 on, as at 0.99, it falls at every size.
//
// In exact arithmetic that is PyTorch's update: p - lr * wd * p - (lr / bc1) * m' / (sqrt(v') / sqrt(bc2) + eps). It
// differs in rounding only, and for the better: PyTorch rounds the factor 1 - lr * wd to fp32 (at lr * wd = 1e-8 it
// becomes 1 and the decay is lost) and rounds at the size of p twice; here decay and step are added up first, so p is
// rounded once.
//
// Non-finite values propagate as IEEE-754 says: a NaN or Inf gradient makes m' and v' non-finite and p' NaN. Deciding
// that such a step is skipped is the caller's (offload/verdict.h). The one thing outside the contract is the sign and
// payload of a NaN, on which instruction sets disagree. A finite gradient above about 1e19 can overflow v to Inf, as in
// PyTorch: q is 0 from then on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "optim/moments.h"

namespace so {

// Fixed for a run. double, since 1 - beta must be formed before rounding: 1 - 0.999f is off by 5e-5.
struct AdamWHyper {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  bool operator==(const AdamWHyper&) const = default;
};

// The coefficients of one optimizer step, computed in double and rounded to fp32 once; the CUDA kernel gets them too.
struct AdamWStep {
  float grad_scale;       // multiplies the gradient: the clip coefficient, or 1 (then exact)
  float one_minus_beta1;  // 1 - beta1
  float beta2;
  float one_minus_beta2;  // 1 - beta2
  float inv_sqrt_bias2;   // 1 / sqrt(1 - beta2^t)
  float epsilon;
  float step_size;       // lr / (1 - beta1^t)
  float decay;           // lr * weight_decay, for parameters that decay; the others use 0
  std::uint32_t dither;  // of the step's number: 8-bit moments are rounded by it

  bool operator==(const AdamWStep&) const = default;
};

// `step_number` t counts from 1. Throws Error on a hyper-parameter outside its range (0 <= beta < 1, epsilon > 0,
// lr >= 0, weight_decay >= 0, all finite), Bug on t < 1 or a grad_scale that is not finite.
AdamWStep make_adamw_step(const AdamWHyper& hyper, double lr, double weight_decay, std::int64_t step_number,
                          float grad_scale = 1.0f);

// The step for parameters whose learning rate is `multiplier` times that of the others, like a parameter group of its
// own in PyTorch: step_size and decay, which are in proportion to the learning rate, are multiplied in double and
// rounded to fp32 again. Throws Bug on a multiplier that is not positive and finite.
AdamWStep with_lr_multiplier(AdamWStep step, double multiplier);

// fp32 master weights and the two moments, both of one type; arrays of one length, owned by the caller.
struct AdamWState {
  float* master = nullptr;
  Moments m, v;
};
struct AdamWStateView {
  const float* master = nullptr;
  MomentsView m, v;

  AdamWStateView() = default;
  AdamWStateView(const float* master_, MomentsView m_, MomentsView v_) : master(master_), m(m_), v(v_) {}
  AdamWStateView(const AdamWState& s) : master(s.master), m(s.m), v(s.v) {}
};

// A run of gradient elements in either of the types they arrive in.
using GradientSpan = std::variant<std::span<const float>, std::span<const bf16>>;
using WeightSpan = std::variant<std::monostate, std::span<float>, std::span<bf16>>;  // monostate: no weights out

// Updates gradient.size() elements on the calling thread. `decay` says whether weight decay applies: call once per
// parameter, or per run of parameters of one decay class.
//
// Memory: any alignment and any length; `in` and `out` have moments of one type, which in 8 bits begin at a block's
// first element, and end with a block or with their parameter. Each of out.master, out.m, out.v is
// either the very array of its counterpart in `in` (in place) or disjoint from everything read (beside: the old state
// stays untouched, discarding is forgetting). Weights overlap nothing. Fast when the output arrays share their offset,
// in elements, from a 64-byte boundary: large updates then store past the cache. All stores are complete (fenced) when
// the call returns; publish as usual.
//
// Throws Bug if spans differ in length, moments in type, or arrays overlap in another way, or if the calling thread
// flushes subnormals to zero (a library built with -ffast-math may switch that on): the bits would differ.
void adamw_update(const AdamWStep& step, bool decay, GradientSpan gradient, AdamWStateView in, AdamWState out,
                  WeightSpan weights = {});

// The same bits, as work that threads share; its pieces meet at cache-line boundaries. The step is copied, and the
// arrays must last until the work is done. What is wrong with the arguments is thrown at once; a piece throws if its
// thread flushes subnormals.
ParallelWork adamw_update_work(const AdamWStep& step, bool decay, GradientSpan gradient, AdamWStateView in,
                               AdamWState out, WeightSpan weights = {});
// The same by all threads of the pool. Blocks until done.
void adamw_update_parallel(ThreadPool& pool, const AdamWStep& step, bool decay, GradientSpan gradient,
                           AdamWStateView in, AdamWState out, WeightSpan weights = {});

// The weights that adamw_update would write, to the bit, and nothing else: the state is only read, so a speculation
// that fails is forgotten at no cost, and one that holds is followed by the update itself. Moves 16 to 20 bytes an
// element where moments are fp32, an update 28 to 32. Weights must be given; large ones are stored past the cache;
// moments in 8 bits may begin within a block; all else as above.
void adamw_preview(const AdamWStep& step, bool decay, GradientSpan gradient, AdamWStateView in, WeightSpan weights);
ParallelWork adamw_preview_work(const AdamWStep& step, bool decay, GradientSpan gradient, AdamWStateView in,
                                WeightSpan weights);

// ---- For tests and benchmarks; the choice is global, and without it the best one is taken. ----

// Lists the instruction sets of this machine, best first, in Highway's names ("AVX3" is AVX-512); "scalar" is always
// there and last. Sets without a fused multiply-add instruction (SSE4 and below) are not offered: emulating it in their
// vectors gains nothing over the scalar code on machines that are anyway not the ones one trains on.
std::vector<std::string> adamw_instruction_sets();
void adamw_use_instruction_set(std::string_view name);  // one of the above, or "" for the best; Error otherwise

// Whether outputs are stored through the cache or past it (non-temporal). `automatic` decides by size and aliasing.
enum class AdamWStores { automatic, cached, stream_weights, stream_all };
void adamw_use_stores(AdamWStores stores);

}  // namespace so
