#include "ops/cuda/state_space.h"

#include <algorithm>

#include "ops/cuda/column_sums.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/state_space_checks.h"

namespace so {
namespace {

SpaceArguments arguments_of(const Ops::StateSpace& s) {
  SpaceArguments a;
  a.x = head_rows(s.x);
  a.b = head_rows(s.b);
  a.c = head_rows(s.c);
  a.decay = s.decay.as<float>();
  a.step = s.step.as<float>();
  a.skip = s.skip.data();
  a.starts = s.documents.starts.as<std::int32_t>();
  a.rows = s.x.rows.dim(0);
  a.gate_width = s.x.heads;
  a.documents = static_cast<int>(s.documents.count);
  a.groups = static_cast<int>(s.b.heads);
  a.heads = static_cast<int>(s.x.heads);
  a.k_dim = static_cast<int>(s.b.head_dim);
  a.v_dim = static_cast<int>(s.x.head_dim);
  return a;
}

// Calls run(arguments, size) for as many groups at a time as there is scratch for.
template <class Run>
void for_each_groups(const SpaceArguments& all, const StateSpaceSize& size, bool gradient, const Run& run) {
  const std::int64_t at_once = space_groups_at_once(size, gradient), ratio = size.heads / size.groups;
  for (std::int64_t first = 0; first < size.groups; first += at_once) {
    const StateSpaceSize part = space_size_of_groups(size, std::min(at_once, size.groups - first));
    SpaceArguments a = all;
    for (HeadRows* heads : {&a.b, &a.c, &a.db, &a.dc}) *heads = from_head(*heads, first, size.dtype);
    for (HeadRows* heads : {&a.x, &a.out, &a.dout, &a.dx}) *heads = from_head(*heads, first * ratio, size.dtype);
    a.decay += first * ratio;
    a.step += first * ratio;
    a.skip = static_cast<const char*>(a.skip) + first * ratio * static_cast<std::int64_t>(size_of(size.dtype));
    if (gradient) {
      a.ddecay += first * ratio;
      a.dstep += first * ratio;
    }
    if (a.state) a.state += first * ratio * size.k_dim * size.v_dim;
    a.groups = static_cast<int>(part.groups);
    a.heads = static_cast<int>(part.heads);
    run(a, part);
  }
}

void require_plain_space(const StateSpaceSize& size) {
  if (size.k_dim > plain_space_dim || size.v_dim > plain_space_dim)
    fail("state space: states of {} x {} are larger than the CUDA backend takes ({})", size.k_dim, size.v_dim,
         plain_space_dim);
}

}  // namespace

void CudaOps::state_space(Stream& stream, const StateSpace& s) {
  const char* op = "state_space";
  const StateSpaceSize size = expect_state_space(op, s);
  const cudaStream_t on = enter(stream);
  if (size.rows == 0 || size.documents == 0) return;
  SpaceArguments a = arguments_of(s);
  a.out = head_rows(s.out);
  a.state = s.state ? s.state.as<float>() : nullptr;
  a.scratch = recurrence_scratch(op, s.scratch, memory().state_space(size));
  if (properties_.capability == 90 && chunked_space_takes(size) && in_pieces(a.x) && in_pieces(a.b) && in_pieces(a.c) &&
      in_pieces(a.out))
    return for_each_groups(a, size, false, [&](const auto& part, const auto& of) { hopper_state_space(on, part, of); });
  require_plain_space(size);
  plain_state_space(on, size.dtype, a);
}

void CudaOps::state_space_grad(Stream& stream, const StateSpaceGrad& g) {
  const char* op = "state_space_grad";
  const StateSpaceSize size = expect_state_space_grad(op, g);
  const cudaStream_t on = enter(stream);
  SpaceArguments a = arguments_of(g.forward);
  a.dout = head_rows(g.dout);
  a.dx = head_rows(g.dx);
  a.db = head_rows(g.db);
  a.dc = head_rows(g.dc);
  a.ddecay = g.ddecay.as<float>();
  a.dstep = g.dstep.as<float>();
  const bool any = size.rows > 0 && size.documents > 0;
  if (g.dskip) {
    const std::int64_t pieces = any ? (size.rows + skip_piece - 1) / skip_piece : 0;
    auto* partial = scratch<float>(static_cast<std::size_t>(pieces * size.heads));
    if (any) sum_skip_gradients(on, size.dtype, partial, a);
    finish_column_sums(on, g.dskip, partial, pieces, size.heads, g.dskip_mode);
  }
  if (!any) return;
  a.scratch = recurrence_scratch(op, g.scratch, memory().state_space_grad(size));
  if (properties_.capability == 90 && chunked_space_takes(size) && in_pieces(a.x) && in_pieces(a.b) && in_pieces(a.c) &&
      in_pieces(a.dout) && in_pieces(a.dx) && in_pieces(a.db) && in_pieces(a.dc))
    return for_each_groups(a, size, true,
                           [&](const auto& part, const auto& of) { hopper_state_space_grad(on, part, of); });
  require_plain_space(size);
  for_each_groups(a, size, true,
                  [&](const auto& part, const auto& of) { plain_state_space_grad(on, size.dtype, part, of); });
}

}  // namespace so
