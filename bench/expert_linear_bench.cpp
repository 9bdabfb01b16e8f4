// The products of experts against a dense product of the same operations, in one run on one GPU.
//
//   bench_expert_linear [name]   only models and routings whose names contain it
//
// For each model, routing and product: the time, the rate, the rate of the dense product with the same rows
// (Ops::linear and its gradients), and the share of one in the other. The last line of a routing sums all products of a
// layer with bf16 gradients of weights, as a step with one micro-batch has them. Routings: even, every expert the same
// rows; random, every pair to any expert; zipf, expert e with a share of 1 / (e + 1); half, every other expert none.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/ops.h"
#include "plan/machine/measure.h"

namespace so::bench {
namespace {

struct Projection {
  const char* name;
  std::int64_t in, out;
};
struct Model {
  const char* name;
  std::int64_t experts, rows;
  ExpertLayout layout;
  std::vector<Projection> projections;
};

const std::vector<Model> models = {
    {"qwen3-30b-a3b", 128, 8192 * 8, ExpertLayout::out_in, {{"gate_up", 2048, 1536}, {"down", 768, 2048}}},
    {"gpt-oss-20b", 32, 8192 * 4, ExpertLayout::in_out, {{"gate_up", 2880, 5760}, {"down", 2880, 2880}}},
};
const std::vector<std::string> routings = {"even", "random", "zipf", "half"};

std::vector<std::int32_t> make_offsets(const std::string& routing, std::int64_t experts, std::int64_t rows) {
  std::vector<double> shares(static_cast<std::size_t>(experts), 1);
  for (std::size_t e = 0; e < shares.size(); ++e) {
    if (routing == "zipf") shares[e] = 1 / static_cast<double>(e + 1);
    if (routing == "half") shares[e] = e % 2 == 0 ? 1 : 0;
  }
  std::vector<std::int32_t> counts(shares.size());
  std::mt19937 generator(1);
  if (routing == "random") {
    for (std::int64_t r = 0; r < rows; ++r) ++counts[generator() % shares.size()];
  } else {
    double total = 0, before = 0;
    for (const double share : shares) total += share;
    for (std::size_t e = 0; e < shares.size(); ++e) {
      const double after = before + shares[e] / total;
      const auto row = [&](double at) { return std::lround(at * static_cast<double>(rows)); };
      counts[e] = static_cast<std::int32_t>(row(after) - row(before));
      before = after;
    }
  }
  // Which expert has most is no order of theirs.
  std::shuffle(counts.begin(), counts.end(), generator);
  std::vector<std::int32_t> offsets = {0};
  for (const std::int32_t count : counts) offsets.push_back(offsets.back() + count);
  offsets.back() = static_cast<std::int32_t>(rows);
  return offsets;
}

class Memory {
 public:
  Memory(Device& device, Ops& ops, Stream& stream) : device_(device), ops_(ops), stream_(stream) {}
  Tensor random(DType type, std::initializer_list<std::int64_t> shape) {
    const Tensor sizes(nullptr, type, shape);
    buffers_.push_back(device_.allocate(MemoryKind::device, sizes.bytes(), "bench"));
    const Tensor tensor(buffers_.back().data(), type, shape);
    ops_.random_normal(stream_, tensor, buffers_.size(), 1.0f);
    return tensor;
  }
  Tensor integers(const std::vector<std::int32_t>& values) {
    buffers_.push_back(device_.allocate(MemoryKind::device, values.size() * sizeof(std::int32_t), "bench"));
    stream_.copy(buffers_.back().data(), values.data(), values.size() * sizeof(std::int32_t));
    stream_.synchronize();
    return {buffers_.back().data(), DType::i32, {static_cast<std::int64_t>(values.size())}};
  }

 private:
  Device& device_;
  Ops& ops_;
  Stream& stream_;
  std::vector<Buffer> buffers_;
};

struct Case {
  std::string name;
  bool counts;  // in the sum
  std::function<void()> experts, dense;
};

void run(Device& device, const std::string& only) {
  const auto stream = device.create_stream("bench");
  const auto ops = make_ops(device);
  Stream& on = *stream;
  fmt::print("{}, bf16, dense 8192^3: {:.0f} TFLOP/s\n", device.name(),
             measure_gemm_rate(device, *ops, on, DType::bf16) / 1e12);
  fmt::print("{:<14} {:<7} {:<28} {:>9} {:>8} {:>8} {:>7}\n", "model", "routing", "product", "us", "TFLOP/s", "dense",
             "share");
  for (const Model& m : models)
    for (const std::string& routing : routings) {
      if ((m.name + (" " + routing)).find(only) == std::string::npos) continue;
      double all = 0, all_dense = 0, all_flops = 0;
      for (const Projection& p : m.projections) {
        Memory memory(device, *ops, on);
        const bool out_in = m.layout == ExpertLayout::out_in;
        const std::int64_t first = out_in ? p.out : p.in, second = out_in ? p.in : p.out;
        const DType T = DType::bf16;
        const Tensor x = memory.random(T, {m.rows, p.in}), y = memory.random(T, {m.rows, p.out});
        const Tensor w = memory.random(T, {m.experts, first, second});
        const Tensor dw = memory.random(T, {m.experts, first, second});
        const Tensor dw32 = memory.random(DType::f32, {m.experts, first, second});
        const Tensor w1 = memory.random(T, {p.out, p.in}), dw1 = memory.random(DType::f32, {p.out, p.in});
        const Tensor offsets = memory.integers(make_offsets(routing, m.experts, m.rows));
        const std::string name = p.name;
        const auto dense_weight = [&] { ops->linear_grad_weight(on, dw1, y, x, Accumulate::overwrite); };
        const std::vector<Case> cases = {
            {name + " forward", true, [&] { ops->expert_linear(on, y, x, w, m.layout, offsets); },
             [&] { ops->linear(on, y, x, w1, Tensor(), Accumulate::overwrite); }},
            {name + " grad_input", true, [&] { ops->expert_linear_grad_input(on, x, y, w, m.layout, offsets); },
             [&] { ops->linear_grad_input(on, x, y, w1, Accumulate::overwrite); }},
            {name + " grad_weight bf16", true,
             [&] { ops->expert_linear_grad_weight(on, dw, y, x, m.layout, offsets, Accumulate::overwrite); },
             dense_weight},
            {name + " grad_weight f32", false,
             [&] { ops->expert_linear_grad_weight(on, dw32, y, x, m.layout, offsets, Accumulate::overwrite); },
             dense_weight},
            {name + " grad_weight f32, added", false,
             [&] { ops->expert_linear_grad_weight(on, dw32, y, x, m.layout, offsets, Accumulate::add); },
             dense_weight}};
        const double flops = 2.0 * static_cast<double>(m.rows) * static_cast<double>(p.in * p.out);
        for (const Case& c : cases) {
          // The next product must not read what one leaves: infinities would change the chip's clock.
          ops->random_normal(on, x, 1, 1.0f);
          ops->random_normal(on, y, 2, 1.0f);
          const double seconds = seconds_per_call(on, [&](std::int64_t) { c.experts(); });
          const double dense = seconds_per_call(on, [&](std::int64_t) { c.dense(); });
          fmt::print("{:<14} {:<7} {:<28} {:>9.1f} {:>8.1f} {:>8.1f} {:>6.1f}%\n", m.name, routing, c.name,
                     1e6 * seconds, flops / seconds / 1e12, flops / dense / 1e12, 100 * dense / seconds);
          std::fflush(stdout);
          if (c.counts) all += seconds, all_dense += dense, all_flops += flops;
        }
      }
      fmt::print("{:<14} {:<7} {:<28} {:>9.1f} {:>8.1f} {:>8.1f} {:>6.1f}%\n", m.name, routing, "sum", 1e6 * all,
                 all_flops / all / 1e12, all_flops / all_dense / 1e12, 100 * all_dense / all);
    }
}

}  // namespace
}  // namespace so::bench

int main(int argc, char** argv) {
  try {
    const auto device = so::make_cuda_device(0);
    so::bench::run(*device, argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_expert_linear: {}\n", error.what());
    return 2;
  }
}
