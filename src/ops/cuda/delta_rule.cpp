#include "ops/cuda/delta_rule.h"

#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/delta_checks.h"

namespace so {
namespace {

DeltaArguments arguments_of(const Ops::DeltaRule& r) {
  DeltaArguments a;
  a.q = head_rows(r.q);
  a.k = head_rows(r.k);
  a.v = head_rows(r.v);
  a.decay = r.decay.as<float>();
  a.rate = r.rate.as<float>();
  a.starts = r.documents.starts.as<std::int32_t>();
  a.rows = r.q.rows.dim(0);
  a.gate_width = r.v.heads;
  a.documents = static_cast<int>(r.documents.count);
  a.k_heads = static_cast<int>(r.k.heads);
  a.v_heads = static_cast<int>(r.v.heads);
  a.k_dim = static_cast<int>(r.k.head_dim);
  a.v_dim = static_cast<int>(r.v.head_dim);
  return a;
}

// Calls run(arguments, size) for as many key heads at a time as there is scratch for.
template <class Run>
void for_each_group(const DeltaArguments& all, const DeltaSize& size, bool gradient, const Run& run) {
  const std::int64_t at_once = delta_heads_at_once(size, gradient), ratio = size.v_heads / size.k_heads;
  for (std::int64_t first = 0; first < size.k_heads; first += at_once) {
    const DeltaSize part = delta_size_of_heads(size, std::min(at_once, size.k_heads - first));
    DeltaArguments a = all;
    for (HeadRows* heads : {&a.q, &a.k, &a.dq, &a.dk}) *heads = from_head(*heads, first, size.dtype);
    for (HeadRows* heads : {&a.v, &a.out, &a.dout, &a.dv}) *heads = from_head(*heads, first * ratio, size.dtype);
    a.decay += first * ratio;
    a.rate += first * ratio;
    if (gradient) {
      a.ddecay += first * ratio;
      a.drate += first * ratio;
    }
    if (a.state) a.state += first * ratio * size.k_dim * size.v_dim;
    a.k_heads = static_cast<int>(part.k_heads);
    a.v_heads = static_cast<int>(part.v_heads);
    run(a, part);
  }
}

void require_plain(const DeltaSize& size) {
  if (size.k_dim > plain_delta_head_dim || size.v_dim > plain_delta_head_dim)
    fail("linear attention: heads of {} and {} are larger than the CUDA backend takes ({})", size.k_dim, size.v_dim,
         plain_delta_head_dim);
}

}  // namespace

void CudaOps::delta_rule(Stream& stream, const DeltaRule& r) {
  const DeltaSize size = expect_delta_rule("delta_rule", r);
  const cudaStream_t on = enter(stream);
  if (size.rows == 0) return;
  DeltaArguments a = arguments_of(r);
  a.out = head_rows(r.out);
  a.state = r.state ? r.state.as<float>() : nullptr;
  a.scratch = recurrence_scratch("delta_rule", r.scratch, memory().delta_rule(size));
  if (properties_.capability == 90 && chunked_delta_takes(size) && in_pieces(a.q) && in_pieces(a.k) && in_pieces(a.v) &&
      in_pieces(a.out))
    return for_each_group(a, size, false, [&](const auto& part, const auto& of) { hopper_delta_rule(on, part, of); });
  require_plain(size);
  plain_delta_rule(on, size.dtype, a);
}

void CudaOps::delta_rule_grad(Stream& stream, const DeltaRuleGrad& g) {
  const DeltaSize size = expect_delta_rule_grad("delta_rule_grad", g);
  const cudaStream_t on = enter(stream);
  if (size.rows == 0) return;
  DeltaArguments a = arguments_of(g.forward);
  a.dout = head_rows(g.dout);
  a.dq = head_rows(g.dq);
  a.dk = head_rows(g.dk);
  a.dv = head_rows(g.dv);
  a.ddecay = g.ddecay.as<float>();
  a.drate = g.drate.as<float>();
  a.scratch = recurrence_scratch("delta_rule_grad", g.scratch, memory().delta_rule_grad(size));
  if (properties_.capability == 90 && chunked_delta_takes(size) && in_pieces(a.q) && in_pieces(a.k) && in_pieces(a.v) &&
      in_pieces(a.dout) && in_pieces(a.dq) && in_pieces(a.dk) && in_pieces(a.dv))
    return for_each_group(a, size, true,
                          [&](const auto& part, const auto& of) { hopper_delta_rule_grad(on, part, of); });
  require_plain(size);
  for_each_group(a, size, true,
                 [&](const auto& part, const auto& of) { plain_delta_rule_grad(on, size.dtype, part, of); });
}

}  // namespace so
