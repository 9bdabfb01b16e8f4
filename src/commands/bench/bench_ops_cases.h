// The operations that `bench ops` times: the tensors of each, its call, and the least that it must read, write or
// compute.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/arena.h"
#include "device/backend.h"
#include "model/spec.h"
#include "ops/ops.h"
#include "optim/device_adamw.h"
#include "optim/engine_ops.h"

namespace so {

// The tensors of one case, acquired from an arena, and what they begin with.
class Tensors {
 public:
  explicit Tensors(Arena& arena) : arena_(arena) {}

  Tensor random(DType dtype, std::initializer_list<std::int64_t> shape) {
    const Tensor tensor = arena_.acquire("random", dtype, shape);
    random_.push_back(tensor);
    return tensor;
  }
  Tensor integers(const std::vector<std::int32_t>& values) {
    const Tensor tensor = arena_.acquire("integers", DType::i32, {static_cast<std::int64_t>(values.size())});
    copied_.emplace_back(tensor, values.data());
    return tensor;
  }
  Tensor floats(const std::vector<float>& values, std::initializer_list<std::int64_t> shape) {
    const Tensor tensor = arena_.acquire("floats", DType::f32, shape);
    copied_.emplace_back(tensor, values.data());
    return tensor;
  }
  Tensor scratch(std::size_t bytes) {
    return bytes == 0 ? Tensor() : arena_.acquire("scratch", DType::u8, {static_cast<std::int64_t>(bytes)});
  }
  Tensor zeros(DType dtype, std::initializer_list<std::int64_t> shape) {
    zeroed_.push_back(arena_.acquire("zeros", dtype, shape));
    return zeroed_.back();
  }
  // On a backed device only. Waits.
  void fill(Ops& ops, Stream& stream) const {
    std::uint64_t seed = 1;
    for (const Tensor& tensor : random_) ops.random_normal(stream, tensor, seed++, 1.0f);
    for (const Tensor& tensor : zeroed_) stream.zero(tensor.data(), tensor.bytes());
    for (const auto& [tensor, values] : copied_) stream.copy(tensor.data(), values, tensor.bytes());
    stream.synchronize();
  }

 private:
  Arena& arena_;
  std::vector<Tensor> random_, zeroed_;
  std::vector<std::pair<Tensor, const void*>> copied_;  // the vectors outlive the case
};

// One call of an operation. Bound to the tensors; `prepare` runs once before it is timed.
struct Call {
  std::function<void(Ops&, Stream&)> run;
  std::function<void(Ops&, Stream&)> prepare = {};
};

struct Case {
  std::string name, shape;
  double bytes = 0, flops = 0;  // one of them: what the floor counts
  std::function<Call(Tensors&)> make;
};

// All operations of a model's layer, embedding and head at some sizes. What a case makes refers to this object.
class Cases {
 public:
  virtual ~Cases() = default;
  const std::vector<Case>& all() const { return cases_; }

 protected:
  std::vector<Case> cases_;
};
std::unique_ptr<Cases> make_cases(const DecoderSpec& spec, std::int64_t tokens, std::int64_t longest, DType dtype,
                                  const Backend& backend, const Ops& ops, EngineOps& engine_ops, DeviceAdamW& adamw);

}  // namespace so
