#include "optim/engine_ops.h"

#include "base/error.h"
#include "optim/cpu/cpu_engine_ops.h"
#include "optim/cuda/cuda.h"
#include "optim/engine_ops_checks.h"

namespace so {
namespace {

class DryEngineOps final : public EngineOps {
 public:
  void grad_stats(Stream&, std::span<const StatsOf>, Tensor) override {}
  void cast(Stream&, std::span<const DeviceCast>) override {}
  void copy(Stream&, std::span<const DeviceCopy>) override {}
  void add(Stream&, Tensor, Tensor) override {}
  void sum_of_ranks(Stream&, std::span<const RankSum>, Accumulate, int) override {}
};

void expect_float(const char* op, const char* argument, DType dtype) {
  SO_CHECK(dtype == DType::f32 || dtype == DType::bf16, "{}: {} is {}, not f32 or bf16", op, argument, name_of(dtype));
}

}  // namespace

std::size_t EngineOps::stats_scratch(std::int64_t elements) {
  return static_cast<std::size_t>(stats_blocks(elements)) * sizeof(GradStats);
}

void check_grad_stats(std::span<const StatsOf> gradients, const Tensor& scratch) {
  const char* op = "grad_stats";
  std::size_t needed = 0;
  for (const auto& [out, grad] : gradients) {
    SO_CHECK(out != nullptr, "{}: no place for the result", op);
    expect_float(op, "grad", grad.dtype());
    SO_CHECK(grad.dtype() == gradients.front().grad.dtype(), "{}: gradients of two formats", op);
    SO_CHECK(grad || grad.size() == 0, "{}: grad is empty", op);
    needed += EngineOps::stats_scratch(grad.size());
  }
  SO_CHECK(needed == 0 || (scratch && scratch.bytes() >= needed), "{}: {} bytes of scratch, {} needed", op,
           scratch ? scratch.bytes() : 0, needed);
}

void check_cast(std::span<const DeviceCast> casts) {
  const char* op = "cast";
  for (const auto& [out, in] : casts) {
    expect_float(op, "in", in.dtype());
    expect_float(op, "out", out.dtype());
    SO_CHECK(in.dtype() != out.dtype(), "{}: both are {}: that is a copy", op, name_of(in.dtype()));
    SO_CHECK(in.dtype() == casts.front().in.dtype(), "{}: of two directions", op);
    SO_CHECK(in.size() == out.size(), "{}: from {} to {}", op, shape_string(in.shape()), shape_string(out.shape()));
    SO_CHECK((in && out) || in.size() == 0, "{}: a tensor is empty", op);
  }
}

void check_add(const Tensor& out, const Tensor& in) {
  const char* op = "add";
  expect_float(op, "in", in.dtype());
  expect_float(op, "out", out.dtype());
  SO_CHECK(in.size() == out.size(), "{}: {} to {}", op, shape_string(in.shape()), shape_string(out.shape()));
  SO_CHECK((in && out) || in.size() == 0, "{}: a tensor is empty", op);
}

void check_sum_of_ranks(std::span<const RankSum> sums, int rank) {
  const char* op = "sum_of_ranks";
  for (const auto& [out, own, others] : sums) {
    expect_float(op, "own", own.dtype());
    SO_CHECK((out.dtype() == DType::f32 || out.dtype() == own.dtype()) && out.dtype() == sums.front().out.dtype(),
             "{}: out is {}", op, name_of(out.dtype()));
    SO_CHECK(others.dtype() == own.dtype() && own.dtype() == sums.front().own.dtype(), "{}: own is {}, others are {}",
             op, name_of(own.dtype()), name_of(others.dtype()));
    SO_CHECK(out.size() == own.size() && others.rank() == 2 && others.dim(1) == own.size(), "{}: {} and {} to {}", op,
             shape_string(own.shape()), shape_string(others.shape()), shape_string(out.shape()));
    SO_CHECK(rank >= 0 && rank <= others.dim(0) && others.dim(0) == sums.front().others.dim(0), "{}: rank {} of {}", op,
             rank, others.dim(0) + 1);
    SO_CHECK((own && out && (others || others.dim(0) == 0)) || own.size() == 0, "{}: a tensor is empty", op);
  }
}

std::unique_ptr<EngineOps> make_engine_ops(Device& device) {
  if (!device.backed()) return std::make_unique<DryEngineOps>();
  switch (device.kind()) {
    case DeviceKind::cpu:
      return std::make_unique<CpuEngineOps>();
    case DeviceKind::cuda:
      return make_cuda_engine_ops(device);
  }
  SO_BUG("no engine ops for device {}", device.name());
}

}  // namespace so
