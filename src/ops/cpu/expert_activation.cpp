// The activation of experts, with their biases and the weights of their rows, and its gradient.
#include <cstdint>
#include <type_traits>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"
#include "ops/expert_checks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/expert_activation.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "base/row_simd-inl.h"
#include "ops/cpu/sigmoid-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

// Where the columns i, i + 1, ... of gate and up lie in a row: side by side, or one of each in turn, or there is no
// gate. `inputs`: columns of a row for each of the activation.
struct Halves {
  static constexpr std::int64_t inputs = 2;
  std::int64_t width;
  template <class D, class T>
  HWY_INLINE void get(D d, const T* row, std::int64_t i, hn::Vec<D>& gate, hn::Vec<D>& up) const {
    gate = load(d, row + i);
    up = load(d, row + width + i);
  }
  template <class D, class T>
  HWY_INLINE void put(D d, T* row, std::int64_t i, hn::Vec<D> gate, hn::Vec<D> up) const {
    store(d, gate, row + i);
    store(d, up, row + width + i);
  }
};
struct InTurn {
  static constexpr std::int64_t inputs = 2;
  template <class D>
  HWY_INLINE void get(D d, const float* row, std::int64_t i, hn::Vec<D>& gate, hn::Vec<D>& up) const {
    hn::LoadInterleaved2(d, row + 2 * i, gate, up);
  }
  template <class D>
  HWY_INLINE void put(D d, float* row, std::int64_t i, hn::Vec<D> gate, hn::Vec<D> up) const {
    hn::StoreInterleaved2(gate, up, d, row + 2 * i);
  }
  template <class D>
  HWY_INLINE void get(D d, const bf16* row, std::int64_t i, hn::Vec<D>& gate, hn::Vec<D>& up) const {
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<std::uint16_t, D> du16;
    auto first = hn::Undefined(du16), second = hn::Undefined(du16);
    hn::LoadInterleaved2(du16, reinterpret_cast<const std::uint16_t*>(row + 2 * i), first, second);
    gate = hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, first)));
    up = hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, second)));
  }
  template <class D>
  HWY_INLINE void put(D d, bf16* row, std::int64_t i, hn::Vec<D> gate, hn::Vec<D> up) const {
    const hn::Rebind<std::uint16_t, D> du16;
    hn::StoreInterleaved2(round(d, gate), round(d, up), du16, reinterpret_cast<std::uint16_t*>(row + 2 * i));
  }
};

struct UpAlone {
  static constexpr std::int64_t inputs = 1;
  template <class D, class T>
  HWY_INLINE void get(D d, const T* row, std::int64_t i, hn::Vec<D>& gate, hn::Vec<D>& up) const {
    gate = hn::Zero(d);
    up = load(d, row + i);
  }
  template <class D, class T>
  HWY_INLINE void put(D d, T* row, std::int64_t i, hn::Vec<D>, hn::Vec<D> up) const {
    store(d, up, row + i);
  }
};

// act(gate, up), and dgate and dup for each unit of its gradient.
struct Swiglu {
  template <class D>
  HWY_INLINE hn::Vec<D> value(D d, hn::Vec<D> gate, hn::Vec<D> up) const {
    auto s = hn::Undefined(d), complement = hn::Undefined(d);
    sigmoid(d, gate, s, complement);
    return hn::Mul(hn::Mul(gate, s), up);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> grad(D d, hn::Vec<D> gate, hn::Vec<D> up, hn::Vec<D>& dgate, hn::Vec<D>& dup) const {
    auto s = hn::Undefined(d), complement = hn::Undefined(d);
    sigmoid(d, gate, s, complement);
    dup = hn::Mul(gate, s);
    dgate = hn::Mul(up, hn::MulAdd(dup, complement, s));
    return hn::Mul(dup, up);
  }
};
// x sigmoid(z) with z = 2 sqrt(2/pi) (x + 0.044715 x^3), as in activation.cpp.
struct Geglu {
  static constexpr float linear = 1.5957691216057308f, cubic = linear * 0.044715f;
  template <class D>
  HWY_INLINE hn::Vec<D> value(D d, hn::Vec<D> gate, hn::Vec<D> up) const {
    auto s = hn::Undefined(d), complement = hn::Undefined(d);
    const auto square = hn::Mul(gate, gate);
    sigmoid(d, hn::Mul(gate, hn::MulAdd(square, hn::Set(d, cubic), hn::Set(d, linear))), s, complement);
    return hn::Mul(hn::Mul(gate, s), up);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> grad(D d, hn::Vec<D> gate, hn::Vec<D> up, hn::Vec<D>& dgate, hn::Vec<D>& dup) const {
    auto s = hn::Undefined(d), complement = hn::Undefined(d);
    const auto square = hn::Mul(gate, gate);
    sigmoid(d, hn::Mul(gate, hn::MulAdd(square, hn::Set(d, cubic), hn::Set(d, linear))), s, complement);
    dup = hn::Mul(gate, s);
    // Where s or 1 - s is 0, the slope of z may be too large for fp32: the product is 0 then.
    const auto both = hn::Mul(dup, complement), slope = hn::MulAdd(square, hn::Set(d, 3 * cubic), hn::Set(d, linear));
    const auto bent = hn::IfThenElse(hn::Eq(both, hn::Zero(d)), hn::Zero(d), hn::Mul(both, slope));
    dgate = hn::Mul(up, hn::Add(s, bent));
    return hn::Mul(dup, up);
  }
};
// A bound passes a NaN on (comparing is false), and the gradient up to the bound itself.
struct Clamped {
  static constexpr float slope = 1.702f;
  float limit;
  template <class D>
  HWY_INLINE void clamp(D d, hn::Vec<D>& gate, hn::Vec<D>& up) const {
    const auto most = hn::Set(d, limit), least = hn::Set(d, -limit);
    gate = hn::IfThenElse(hn::Gt(gate, most), most, gate);
    up = hn::IfThenElse(hn::Gt(up, most), most, hn::IfThenElse(hn::Lt(up, least), least, up));
    up = hn::Add(up, hn::Set(d, 1.0f));
  }
  template <class D>
  HWY_INLINE hn::Vec<D> value(D d, hn::Vec<D> gate, hn::Vec<D> up) const {
    clamp(d, gate, up);
    auto s = hn::Undefined(d), complement = hn::Undefined(d);
    sigmoid(d, hn::Mul(gate, hn::Set(d, slope)), s, complement);
    return hn::Mul(hn::Mul(gate, s), up);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> grad(D d, hn::Vec<D> gate, hn::Vec<D> up, hn::Vec<D>& dgate, hn::Vec<D>& dup) const {
    const auto most = hn::Set(d, limit);
    const auto gate_passed = hn::Gt(gate, most), up_passed = hn::Gt(hn::Abs(up), most);
    clamp(d, gate, up);
    const auto steep = hn::Mul(gate, hn::Set(d, slope));
    auto s = hn::Undefined(d), complement = hn::Undefined(d);
    sigmoid(d, steep, s, complement);
    const auto y = hn::Mul(gate, s);
    dup = hn::IfThenElse(up_passed, hn::Zero(d), y);
    dgate = hn::IfThenElse(gate_passed, hn::Zero(d), hn::Mul(up, hn::MulAdd(hn::Mul(steep, s), complement, s)));
    return hn::Mul(y, up);
  }
};

// NaN stays NaN, since no comparison with it is true.
struct ReluSquared {
  template <class D>
  HWY_INLINE hn::Vec<D> value(D d, hn::Vec<D>, hn::Vec<D> up) const {
    const auto x = hn::IfThenElse(hn::Lt(up, hn::Zero(d)), hn::Zero(d), up);
    return hn::Mul(x, x);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> grad(D d, hn::Vec<D>, hn::Vec<D> up, hn::Vec<D>& dgate, hn::Vec<D>& dup) const {
    const auto x = hn::IfThenElse(hn::Lt(up, hn::Zero(d)), hn::Zero(d), up);
    dgate = hn::Zero(d);
    dup = hn::Add(x, x);
    return hn::Mul(x, x);
  }
};

// gate and up of a row, with the bias of its expert if there is one.
template <class Columns, class D, class T>
HWY_INLINE void get_biased(const Columns& columns, D d, const T* row, const T* bias, std::int64_t i, hn::Vec<D>& gate,
                           hn::Vec<D>& up) {
  columns.get(d, row, i, gate, up);
  if (!bias) return;
  auto gate_bias = hn::Undefined(d), up_bias = hn::Undefined(d);
  columns.get(d, bias, i, gate_bias, up_bias);
  gate = hn::Add(gate, gate_bias);
  up = hn::Add(up, up_bias);
}

template <class T>
const T* bias_of_row(const Tensor& bias, const Routing& routing, std::int64_t r) {
  if (!bias) return nullptr;
  const std::int32_t expert = routing.experts.as<std::int32_t>()[routing.pairs.as<std::int32_t>()[r]];
  return bias.as<T>() + expert * bias.dim(1);
}

template <class T, class Columns, class Activation>
void value_rows(Tensor out, Tensor gate_up, Tensor bias, const Routing& routing, const Columns& columns,
                const Activation& activation, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = out.dim(1);
  for (std::int64_t r = begin; r < end; ++r) {
    const T *row = gate_up.as<T>() + r * Columns::inputs * width, *row_bias = bias_of_row<T>(bias, routing, r);
    T* to = out.as<T>() + r * width;
    const float weight = routing.weights.as<float>()[r];
    for_row(width, [&](auto d, std::int64_t i) HWY_ATTR {
      auto gate = hn::Undefined(d), up = hn::Undefined(d);
      get_biased(columns, d, row, row_bias, i, gate, up);
      store(d, hn::Mul(activation.value(d, gate, up), hn::Set(d, weight)), to + i);
    });
  }
}

// Every element is read before it is written, so outputs may lie on inputs.
template <class T, class Columns, class Activation>
void grad_rows(Tensor dgate_up, Tensor dweights, Tensor activated, Tensor dout, Tensor gate_up, Tensor bias,
               const Routing& routing, Accumulate mode, const Columns& columns, const Activation& activation,
               std::int64_t begin, std::int64_t end) {
  const std::int64_t width = dout.dim(1);
  for (std::int64_t r = begin; r < end; ++r) {
    const T *row = gate_up.as<T>() + r * Columns::inputs * width, *row_bias = bias_of_row<T>(bias, routing, r);
    const T* dy = dout.as<T>() + r * width;
    T *to = dgate_up.as<T>() + r * Columns::inputs * width, *again = activated.as<T>() + r * width;
    const float weight = routing.weights.as<float>()[r];
    const float dot = sum_row(width, [&](auto d, std::int64_t i) HWY_ATTR {
      auto gate = hn::Undefined(d), up = hn::Undefined(d), dgate = hn::Undefined(d), dup = hn::Undefined(d);
      get_biased(columns, d, row, row_bias, i, gate, up);
      const auto dyi = load(d, dy + i), scaled = hn::Mul(dyi, hn::Set(d, weight));
      const auto y = activation.grad(d, gate, up, dgate, dup);
      columns.put(d, to, i, hn::Mul(scaled, dgate), hn::Mul(scaled, dup));
      store(d, hn::Mul(y, hn::Set(d, weight)), again + i);
      return hn::Mul(dyi, y);
    });
    float& dweight = dweights.as<float>()[r];
    dweight = mode == Accumulate::add ? dweight + dot : dot;
  }
}

// Calls rows(T*, columns, activation) with the arguments' types.
template <class Rows>
HWY_INLINE void with_kind(DType dtype, const ExpertActivation& activation, std::int64_t width, const Rows& rows) {
  const auto typed = [&](auto* t) {
    if (activation.kind == ExpertActivation::Kind::swiglu)
      rows(t, Halves{width}, Swiglu{});
    else if (activation.kind == ExpertActivation::Kind::geglu)
      rows(t, Halves{width}, Geglu{});
    else if (activation.kind == ExpertActivation::Kind::relu_squared)
      rows(t, UpAlone{}, ReluSquared{});
    else
      rows(t, InTurn{}, Clamped{activation.limit});
  };
  dtype == DType::bf16 ? typed(static_cast<bf16*>(nullptr)) : typed(static_cast<float*>(nullptr));
}

void activation_rows(Tensor out, Tensor gate_up, Tensor bias, const ExpertActivation& kind, const Routing& routing,
                     std::int64_t begin, std::int64_t end) {
  with_kind(out.dtype(), kind, out.dim(1), [&](auto* t, const auto& columns, const auto& activation) {
    value_rows<std::remove_pointer_t<decltype(t)>>(out, gate_up, bias, routing, columns, activation, begin, end);
  });
}

void activation_grad_rows(Tensor dgate_up, Tensor dweights, Tensor activated, Tensor dout, Tensor gate_up, Tensor bias,
                          const ExpertActivation& kind, const Routing& routing, Accumulate mode, std::int64_t begin,
                          std::int64_t end) {
  with_kind(dout.dtype(), kind, dout.dim(1), [&](auto* t, const auto& columns, const auto& activation) {
    grad_rows<std::remove_pointer_t<decltype(t)>>(dgate_up, dweights, activated, dout, gate_up, bias, routing, mode,
                                                  columns, activation, begin, end);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace so::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace rows {
namespace {

HWY_EXPORT(activation_rows);
HWY_EXPORT(activation_grad_rows);

}  // namespace
}  // namespace rows

void CpuOps::expert_activation(Stream& stream, Tensor out, Tensor gate_up, Tensor bias,
                               const ExpertActivation& activation, const Routing& routing) {
  const RoutingSize size = expect_expert_activation("expert_activation", out, gate_up, bias, activation, routing);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("expert_activation", WorkCategory::memory_bound, [=, &pool] {
    pool.parallel_for(size.rows, row_grain(out.dim(1)), [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(rows::activation_rows)(out, gate_up, bias, activation, routing, begin, end);
    });
  });
}

void CpuOps::expert_activation_grad(Stream& stream, const ExpertActivationGrad& g) {
  const RoutingSize size = expect_expert_activation_grad("expert_activation_grad", g);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("expert_activation_grad", WorkCategory::memory_bound, [=, &pool] {
    pool.parallel_for(size.rows, row_grain(g.dout.dim(1)), [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(rows::activation_grad_rows)
      (g.dgate_up, g.dweights, g.activated, g.dout, g.gate_up, g.bias, g.activation, g.routing, g.dweights_mode, begin,
       end);
    });
  });
}

}  // namespace so
#endif
