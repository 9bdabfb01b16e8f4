// A GPU's products of experts against the CPU's, in the sizes that its kernels tell apart. (expert_linear_test.cpp
// holds both to the formula, in small.)
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/cpus.h"
#include "ops/arrays.h"
#include "support/rig.h"

namespace so::expert_linear_gpu_test {
namespace {

using testing::Array;
using testing::make_pool;
using testing::Mirror;
using testing::unit_roundoff;

#define SO_GPU_ONLY() \
  if (!test::on_gpu()) GTEST_SKIP() << "compares a GPU with the CPU"

struct Case {
  DType type;
  std::int64_t in, out;
  std::vector<std::int64_t> counts;  // rows of each expert

  std::int64_t experts() const { return static_cast<std::int64_t>(counts.size()); }
  std::int64_t rows() const { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); }
  std::vector<std::int64_t> weight_shape(ExpertLayout layout) const {
    if (layout == ExpertLayout::out_in) return {experts(), out, in};
    return {experts(), in, out};
  }
  Array offsets() const {
    std::vector<std::int32_t> at = {0};
    for (const std::int64_t count : counts) at.push_back(at.back() + static_cast<std::int32_t>(count));
    return Array::of(at);
  }
};

std::vector<std::int64_t> all_on_one(std::size_t experts, std::size_t one, std::int64_t rows) {
  std::vector<std::int64_t> counts(experts);
  counts[one] = rows;
  return counts;
}
// Most experts with few rows or none, in runs of both.
std::vector<std::int64_t> scattered(std::size_t experts) {
  std::vector<std::int64_t> counts(experts);
  for (std::size_t e = 0; e < experts; ++e) counts[e] = e % 50 < 35 ? 0 : static_cast<std::int64_t>(e * 37 % 211);
  return counts;
}

std::vector<Case> cases() {
  const std::vector<std::int64_t> around_tiles = {0, 1, 127, 128, 129, 3000, 0, 255, 256, 257, 63, 64, 65};
  std::vector<Case> all = {
      // Multiples of 8 that are none of 64, and less than a tile of columns.
      {DType::bf16, 72, 200, around_tiles},
      {DType::bf16, 8, 136, around_tiles},
      {DType::bf16, 256, 384, around_tiles},
      {DType::bf16, 264, 392, all_on_one(128, 127, 1000)},
      {DType::bf16, 128, 64, all_on_one(33, 0, 1)},
      {DType::bf16, 128, 136, scattered(300)},
      // Qwen3-30B-A3B, GPT-OSS-20B.
      {DType::bf16, 2048, 1536, {300, 0, 130}},
      {DType::bf16, 768, 2048, {300, 0, 130}},
      {DType::bf16, 2880, 5760, {0, 333}},
      {DType::bf16, 2880, 2880, {129, 40}},
      // Not for the matrix units' rows of 16 bytes.
      {DType::bf16, 7, 5, {4, 0, 9, 70}},
      {DType::bf16, 132, 65, {0, 63, 64, 65, 1}},
      {DType::f32, 72, 200, around_tiles},
      {DType::f32, 131, 97, scattered(70)},
      {DType::f32, 33, 1, {0, 64, 1, 129}},
  };
  return all;
}

// Both results err by fp32 sums, as linear_test.cpp has it, and by one rounding to their type: at most twice what one
// does. The factors are within +-1, so a product of two is 1/4 on average and sums of their magnitudes stay below half
// their number, but for a few.
void expect_same(const Array& gpu, const Array& cpu, std::int64_t terms, const std::string& what) {
  ASSERT_EQ(gpu.size(), cpu.size()) << what;
  const double growth = 2 * std::sqrt(static_cast<double>(terms) + 2) * unit_roundoff(DType::f32);
  const double sums = 2 * growth * (static_cast<double>(terms) / 2 + 2);
  const double rounding = 2 * unit_roundoff(cpu.type());
  double largest = 0;
  for (std::int64_t i = 0; i < cpu.size(); ++i) {
    const double expected = cpu[i];
    largest = std::max(largest, std::abs(expected));
    const bool close = std::abs(gpu[i] - expected) <= sums + rounding * (std::abs(expected) + sums);  // not if NaN
    ASSERT_TRUE(close) << what << " element " << i << ": " << gpu[i] << ", should be " << expected;
  }
  EXPECT_TRUE(largest > 0 || cpu.size() == 0) << what;
}

// The same op on both devices, on copies of the same arrays.
class Both {
 public:
  using Run = std::function<void(Ops&, Stream&, Tensor out, Tensor a, Tensor b, Tensor offsets)>;

  // On the GPU in place; returns what the CPU makes of it.
  Array run(Array& out, Array& a, Array& b, Array& offsets, const Run& op) {
    Array expected = out;
    op(*ops_, *stream_, expected.tensor(), a.tensor(), b.tensor(), offsets.tensor());
    stream_->synchronize();
    run_gpu(out, a, b, offsets, op);
    return expected;
  }
  void run_gpu(Array& out, Array& a, Array& b, Array& offsets, const Run& op) {
    Mirror o(gpu_.stream(), out), m(gpu_.stream(), a), n(gpu_.stream(), b), at(gpu_.stream(), offsets);
    op(gpu_.ops(), gpu_.stream(), o.tensor(), m.tensor(), n.tensor(), at.tensor());
    o.fetch();
  }

 private:
  test::Rig gpu_;
  ThreadPool pool_ = make_pool(static_cast<int>(usable_cpus().size()));
  std::unique_ptr<Device> cpu_ = make_cpu_device(pool_);
  std::unique_ptr<Stream> stream_ = cpu_->create_stream("cpu");
  std::unique_ptr<Ops> ops_ = make_ops(*cpu_);
};

std::string name(const Case& c, ExpertLayout layout) {
  return "in " + std::to_string(c.in) + ", out " + std::to_string(c.out) + ", " + std::to_string(c.rows()) +
         " rows of " + std::to_string(c.experts()) + " experts, " + std::string(name_of(c.type)) +
         (layout == ExpertLayout::out_in ? ", out_in" : ", in_out");
}

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

TEST(ExpertLinearOnGpu, Forward) {
  SO_GPU_ONLY();
  Both both;
  for (const Case& c : cases())
    for (const ExpertLayout layout : {ExpertLayout::out_in, ExpertLayout::in_out}) {
      Array x = Array::random(c.type, {c.rows(), c.in}, 1), w = Array::random(c.type, c.weight_shape(layout), 2);
      Array out = Array::filled(c.type, {c.rows(), c.out}, nan), offsets = c.offsets();
      const Array cpu =
          both.run(out, x, w, offsets, [layout](Ops& ops, Stream& stream, Tensor o, Tensor a, Tensor b, Tensor at) {
            ops.expert_linear(stream, o, a, b, layout, at);
          });
      expect_same(out, cpu, c.in, name(c, layout));
    }
}

TEST(ExpertLinearOnGpu, GradInput) {
  SO_GPU_ONLY();
  Both both;
  for (const Case& c : cases())
    for (const ExpertLayout layout : {ExpertLayout::out_in, ExpertLayout::in_out}) {
      Array dy = Array::random(c.type, {c.rows(), c.out}, 1), w = Array::random(c.type, c.weight_shape(layout), 2);
      Array dx = Array::filled(c.type, {c.rows(), c.in}, nan), offsets = c.offsets();
      const Array cpu =
          both.run(dx, dy, w, offsets, [layout](Ops& ops, Stream& stream, Tensor o, Tensor a, Tensor b, Tensor at) {
            ops.expert_linear_grad_input(stream, o, a, b, layout, at);
          });
      expect_same(dx, cpu, c.out, name(c, layout));
    }
}

// Overwritten, what was there must not leak in, not even as 0 * NaN.
TEST(ExpertLinearOnGpu, GradWeight) {
  SO_GPU_ONLY();
  Both both;
  for (const Case& c : cases())
    for (const ExpertLayout layout : {ExpertLayout::out_in, ExpertLayout::in_out}) {
      Array dy = Array::random(c.type, {c.rows(), c.out}, 1), x = Array::random(c.type, {c.rows(), c.in}, 2);
      Array offsets = c.offsets();
      for (const DType type : {DType::f32, c.type})
        for (const Accumulate mode : {Accumulate::overwrite, Accumulate::add}) {
          const bool add = mode == Accumulate::add;
          Array dw =
              add ? Array::random(type, c.weight_shape(layout), 3) : Array::filled(type, c.weight_shape(layout), nan);
          const Array cpu = both.run(dw, dy, x, offsets,
                                     [layout, mode](Ops& ops, Stream& stream, Tensor o, Tensor a, Tensor b, Tensor at) {
                                       ops.expert_linear_grad_weight(stream, o, a, b, layout, at, mode);
                                     });
          const std::int64_t terms = *std::max_element(c.counts.begin(), c.counts.end());
          expect_same(dw, cpu, terms, name(c, layout) + (add ? ", added to " : ", into ") + std::string(name_of(type)));
        }
    }
}

TEST(ExpertLinearOnGpu, SameBitsTwice) {
  SO_GPU_ONLY();
  Both both;
  const Case c{DType::bf16, 256, 1024, {700, 0, 3, 1100, 17, 128}};
  const ExpertLayout layout = ExpertLayout::in_out;
  Array dy = Array::random(c.type, {c.rows(), c.out}, 1), x = Array::random(c.type, {c.rows(), c.in}, 2);
  Array w = Array::random(c.type, c.weight_shape(layout), 3), offsets = c.offsets();
  std::vector<std::vector<std::byte>> first;
  for (int i = 0; i < 3; ++i) {
    Array out(c.type, {c.rows(), c.out}), dw = Array::random(DType::f32, c.weight_shape(layout), 4);
    both.run_gpu(out, x, w, offsets, [](Ops& ops, Stream& stream, Tensor o, Tensor a, Tensor b, Tensor at) {
      ops.expert_linear(stream, o, a, b, ExpertLayout::in_out, at);
    });
    both.run_gpu(dw, dy, x, offsets, [](Ops& ops, Stream& stream, Tensor o, Tensor a, Tensor b, Tensor at) {
      ops.expert_linear_grad_weight(stream, o, a, b, ExpertLayout::in_out, at, Accumulate::add);
    });
    const std::vector<std::vector<std::byte>> now = {out.bytes(), dw.bytes()};
    if (first.empty()) first = now;
    EXPECT_EQ(first, now);
  }
}

}  // namespace
}  // namespace so::expert_linear_gpu_test
