// The matrix half of the CPU ops against the processor's arithmetic peak.
//
//   bench_cpu_ops --benchmark_filter=... ; one thread, then all
//
// Floor: an fp32 product of 2 m n k operations cannot take less than that over the rate of fused multiply-adds, which
// is measured in this process, on one thread, before the first case. "of peak" is the rate reached over threads times
// that; bf16 instructions may exceed 1. With one thread, CPU time is what counts, so that neighbours on the machine
// disturb little; with more, it is real time. Operations counted: linear 2 m n k; attention 4 d a score forward and 10
// d backward, over the scores at and below the diagonal; cross-entropy 6 rows vocabulary hidden; the delta rule 7
// a token and element of its states forward and 27 backward, in 4 and 15 turns of a unit that could do 2 in each: 0.88
// and 0.90 of peak are its most; a state space, whose chunks are products, 4 a token and element of its states forward
// and 14 backward, with 2 and 6 for each of 64 rows and element of a head, and 2 and 6 of a group's B.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

#include "base/cpus.h"
#include "base/thread_pool.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/cross_entropy.h"
#include "ops/cpu/delta_rule.h"
#include "ops/cpu/linear.h"
#include "ops/cpu/state_space.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../bench/cpu_ops_bench.cpp"  // found from src/
#include <hwy/foreach_target.h>                          // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace so::bench {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Twelve independent chains of fused multiply-adds: enough to hide four cycles of latency on two or three units.
// Returns the operations done; `sink` keeps the results alive.
double multiply_adds(std::int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  const auto a = hn::Set(d, 0.999999f), b = hn::Set(d, 1e-6f);
  // Different beginnings, lest the compiler see twelve times the same chain.
  const auto start = [&](int i) { return hn::Set(d, *sink + static_cast<float>(i)); };
  auto c0 = start(0), c1 = start(1), c2 = start(2), c3 = start(3), c4 = start(4), c5 = start(5);
  auto c6 = start(6), c7 = start(7), c8 = start(8), c9 = start(9), c10 = start(10), c11 = start(11);
  for (std::int64_t i = 0; i < rounds; ++i) {
    c0 = hn::MulAdd(c0, a, b), c1 = hn::MulAdd(c1, a, b), c2 = hn::MulAdd(c2, a, b), c3 = hn::MulAdd(c3, a, b);
    c4 = hn::MulAdd(c4, a, b), c5 = hn::MulAdd(c5, a, b), c6 = hn::MulAdd(c6, a, b), c7 = hn::MulAdd(c7, a, b);
    c8 = hn::MulAdd(c8, a, b), c9 = hn::MulAdd(c9, a, b), c10 = hn::MulAdd(c10, a, b), c11 = hn::MulAdd(c11, a, b);
  }
  const auto sum =
      hn::Add(hn::Add(hn::Add(c0, c1), hn::Add(c2, c3)),
              hn::Add(hn::Add(hn::Add(c4, c5), hn::Add(c6, c7)), hn::Add(hn::Add(c8, c9), hn::Add(c10, c11))));
  *sink = hn::GetLane(hn::SumOfLanes(d, sum));
  return 24.0 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace so::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so::bench {
namespace {

HWY_EXPORT(multiply_adds);

double peak() {  // operations a second, one thread
  static const double best = [] {
    double rate = 0;
    for (int i = 0; i < 50; ++i) {
      float sink = 0;
      const auto begin = std::chrono::steady_clock::now();
      const double operations = HWY_DYNAMIC_DISPATCH(multiply_adds)(200'000, &sink);
      benchmark::DoNotOptimize(sink);
      rate =
          std::max(rate, operations / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return rate;
  }();
  return best;
}

// Runs the case's loop and reports its rate.
template <class Body>
void measure(benchmark::State& state, double operations, std::int64_t threads, const Body& body) {
  const auto now = [&] {
    timespec t{};
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  body();  // code is compiled, scratch memory and caches are touched
  const double all = peak() * static_cast<double>(threads), begin = now();
  for (auto _ : state) body();
  const double rate = operations * static_cast<double>(state.iterations()) / (now() - begin);
  state.counters["FLOP/s"] = rate;
  state.counters["of peak"] = rate / all;
}

struct Matrix {
  std::vector<std::byte> memory;
  Tensor tensor;
  Matrix(DType type, std::int64_t rows, std::int64_t columns)
      : memory(static_cast<std::size_t>(rows * columns) * size_of(type)) {
    tensor = Tensor(memory.data(), type, {rows, columns});
    std::mt19937 generator(1);
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const float value = static_cast<float>(generator()) / 4294967296.0f - 0.5f;
      if (type == DType::bf16)
        tensor.as<bf16>()[i] = bf16(value);
      else
        tensor.as<float>()[i] = value;
    }
  }
};

ThreadPool make_pool(std::int64_t threads) {
  return ThreadPool("bench", std::vector<int>(static_cast<std::size_t>(threads)), false);
}

enum Product { forward, grad_input, grad_weight };

void linear(benchmark::State& state, Product product, DType type, Bf16Path path) {
  const std::int64_t tokens = state.range(0), out = state.range(1), in = state.range(2), threads = state.range(3);
  Matrix x(type, tokens, in), y(type, tokens, out), w(type, out, in), dw(DType::f32, out, in);
  const Gemm g = product == forward      ? linear_gemm(y.tensor, x.tensor, w.tensor, {}, false)
                 : product == grad_input ? linear_grad_input_gemm(x.tensor, y.tensor, w.tensor, false)
                                         : linear_grad_weight_gemm(dw.tensor, y.tensor, x.tensor, true);
  ThreadPool pool = make_pool(threads);
  measure(state, 2.0 * static_cast<double>(tokens * out * in), threads, [&] { gemm(pool, g, path); });
}

// Documents of `length` tokens, `tokens` in all, 6 heads of 64 on 2.
void attention(benchmark::State& state, bool backward) {
  const std::int64_t tokens = state.range(0), length = state.range(1), threads = state.range(2);
  constexpr std::int64_t heads = 6, kv_heads = 2, dim = 64;
  Matrix qkv(DType::f32, tokens, (heads + 2 * kv_heads) * dim), dqkv(DType::f32, tokens, (heads + 2 * kv_heads) * dim);
  Matrix out(DType::f32, tokens, heads * dim), dout(DType::f32, tokens, heads * dim), lse(DType::f32, heads, tokens);
  std::vector<std::int32_t> cu = {0};
  while (cu.back() < tokens)
    cu.push_back(static_cast<std::int32_t>(std::min<std::int64_t>(cu.back() + length, tokens)));
  AttentionSpans spans;
  spans.documents = static_cast<std::int64_t>(cu.size()) - 1;
  spans.cu_q = spans.cu_k = Tensor(cu.data(), DType::i32, {spans.documents + 1});
  spans.max_q = spans.max_k = length;
  spans.scale = 0.125f;
  const auto part = [&](Matrix& m, std::int64_t offset, std::int64_t count) {
    return Heads{m.tensor, offset * dim, count, dim};
  };
  const Ops::AttentionGrad gradient = {.dq = part(dqkv, 0, heads),
                                       .dk = part(dqkv, heads, kv_heads),
                                       .dv = part(dqkv, heads + kv_heads, kv_heads),
                                       .dout = part(dout, 0, heads),
                                       .forward = {.out = part(out, 0, heads),
                                                   .lse = lse.tensor,
                                                   .q = part(qkv, 0, heads),
                                                   .k = part(qkv, heads, kv_heads),
                                                   .v = part(qkv, heads + kv_heads, kv_heads),
                                                   .spans = spans}};
  ThreadPool pool = make_pool(threads);
  attention_forward(pool, gradient.forward);
  const double scores = static_cast<double>(tokens * (length + 1) / 2 * heads);
  measure(state, (backward ? 10.0 : 4.0) * dim * scores, threads, [&] {
    if (backward)
      attention_backward(pool, gradient);
    else
      attention_forward(pool, gradient.forward);
  });
}

void cross_entropy(benchmark::State& state, DType type) {
  const std::int64_t tokens = state.range(0), vocabulary = state.range(1), hidden = state.range(2),
                     chunk = state.range(3);
  const std::int64_t threads = state.range(4);
  Matrix h(type, tokens, hidden), w(type, vocabulary, hidden), dh(type, tokens, hidden),
      dw(DType::f32, vocabulary, hidden);
  Matrix losses(DType::f32, tokens, 1), workspace(DType::f32, chunk, vocabulary);
  std::vector<std::int32_t> targets(static_cast<std::size_t>(tokens), 5);
  Ops::LinearCrossEntropy a;
  a.hidden = h.tensor, a.weight = w.tensor, a.targets = Tensor(targets.data(), DType::i32, {tokens});
  a.losses = losses.tensor, a.dhidden = dh.tensor, a.dweight = dw.tensor, a.workspace = workspace.tensor;
  a.dweight_mode = Accumulate::add, a.grad_scale = 1e-3f;
  ThreadPool pool = make_pool(threads);
  measure(state, 6.0 * static_cast<double>(tokens * vocabulary * hidden), threads,
          [&] { linear_cross_entropy(pool, a); });
}

// One document, heads of 128.
void delta_rule(benchmark::State& state, bool backward) {
  const std::int64_t tokens = state.range(0), k_heads = state.range(1), v_heads = state.range(2),
                     threads = state.range(3);
  constexpr std::int64_t dim = 128;
  Matrix qkv(DType::bf16, tokens, (2 * k_heads + v_heads) * dim), dqkv(DType::bf16, tokens, qkv.tensor.dim(1));
  Matrix out(DType::bf16, tokens, v_heads * dim), dout(DType::bf16, tokens, v_heads * dim);
  Matrix decay(DType::f32, tokens, v_heads), rate(DType::f32, tokens, v_heads);
  Matrix ddecay(DType::f32, tokens, v_heads), drate(DType::f32, tokens, v_heads);
  for (float& value : decay.tensor.span<float>()) value = 0.1f * value - 0.05f;
  for (float& value : rate.tensor.span<float>()) value += 0.5f;
  std::vector<std::int32_t> starts = {0, static_cast<std::int32_t>(tokens)};
  const auto part = [&](Matrix& m, std::int64_t offset, std::int64_t count) {
    return Heads{m.tensor, offset * dim, count, dim};
  };
  const Ops::DeltaRuleGrad gradient = {.dq = part(dqkv, 0, k_heads),
                                       .dk = part(dqkv, k_heads, k_heads),
                                       .dv = part(dqkv, 2 * k_heads, v_heads),
                                       .ddecay = ddecay.tensor,
                                       .drate = drate.tensor,
                                       .dout = part(dout, 0, v_heads),
                                       .forward = {.out = part(out, 0, v_heads),
                                                   .q = part(qkv, 0, k_heads),
                                                   .k = part(qkv, k_heads, k_heads),
                                                   .v = part(qkv, 2 * k_heads, v_heads),
                                                   .decay = decay.tensor,
                                                   .rate = rate.tensor,
                                                   .documents = {Tensor(starts.data(), DType::i32, {2}), 1}}};
  ThreadPool pool = make_pool(threads);
  measure(state, (backward ? 27.0 : 7.0) * static_cast<double>(tokens * v_heads * dim * dim), threads, [&] {
    if (backward)
      delta_rule_backward(pool, gradient);
    else
      delta_rule_forward(pool, gradient.forward);
  });
}

// One document, heads of 64 with states of 128.
void state_space(benchmark::State& state, bool backward) {
  const std::int64_t tokens = state.range(0), groups = state.range(1), heads = state.range(2), threads = state.range(3);
  constexpr std::int64_t k_dim = 128, v_dim = 64, chunk = 64;
  const std::int64_t width = heads * v_dim, projected = width + 2 * groups * k_dim;
  Matrix xbc(DType::bf16, tokens, projected), dxbc(DType::bf16, tokens, projected);
  Matrix out(DType::bf16, tokens, width), dout(DType::bf16, tokens, width), skip(DType::bf16, 1, heads);
  Matrix decay(DType::f32, tokens, heads), step(DType::f32, tokens, heads), dskip(DType::f32, 1, heads);
  Matrix ddecay(DType::f32, tokens, heads), dstep(DType::f32, tokens, heads);
  for (float& value : decay.tensor.span<float>()) value = 0.1f * value - 0.05f;
  for (float& value : step.tensor.span<float>()) value += 0.5f;
  std::vector<std::int32_t> starts = {0, static_cast<std::int32_t>(tokens)};
  const auto x = [&](Matrix& m) { return Heads{m.tensor, 0, heads, v_dim}; };
  const auto b = [&](Matrix& m, std::int64_t which) {
    return Heads{m.tensor, width + which * groups * k_dim, groups, k_dim};
  };
  const Ops::StateSpaceGrad gradient = {.dx = x(dxbc),
                                        .db = b(dxbc, 0),
                                        .dc = b(dxbc, 1),
                                        .ddecay = ddecay.tensor,
                                        .dstep = dstep.tensor,
                                        .dskip = Tensor(dskip.tensor.data(), DType::f32, {heads}),
                                        .dout = x(dout),
                                        .forward = {.out = x(out),
                                                    .x = x(xbc),
                                                    .b = b(xbc, 0),
                                                    .c = b(xbc, 1),
                                                    .decay = decay.tensor,
                                                    .step = step.tensor,
                                                    .skip = Tensor(skip.tensor.data(), DType::bf16, {heads}),
                                                    .documents = {Tensor(starts.data(), DType::i32, {2}), 1}}};
  ThreadPool pool = make_pool(threads);
  const auto of_states = static_cast<double>(tokens * heads * k_dim * v_dim),
             of_rows = static_cast<double>(tokens * chunk * (width + groups * k_dim));
  measure(state, backward ? 14 * of_states + 6 * of_rows : 4 * of_states + 2 * of_rows, threads, [&] {
    if (backward)
      state_space_backward(pool, gradient);
    else
      state_space_forward(pool, gradient.forward);
  });
}

void linear_shapes(benchmark::internal::Benchmark* b, std::int64_t threads) {
  b->ArgNames({"tokens", "out", "in", "threads"})->Unit(benchmark::kMillisecond);
  for (const auto& [tokens, out, in] : {std::array<std::int64_t, 3>{200, 384, 384},
                                        {2048, 384, 384},
                                        {2048, 640, 384},
                                        {2048, 2048, 384},
                                        {2048, 384, 1024},
                                        {1024, 4096, 1024}})
    b->Args({tokens, out, in, threads});
}
void attention_shapes(benchmark::internal::Benchmark* b, std::int64_t threads) {
  b->ArgNames({"tokens", "length", "threads"})->Unit(benchmark::kMillisecond);
  for (const std::int64_t length : {60, 128, 250, 2048}) b->Args({2048, length, threads});
}
void cross_entropy_shapes(benchmark::internal::Benchmark* b, std::int64_t threads) {
  b->ArgNames({"tokens", "vocabulary", "hidden", "chunk", "threads"})->Unit(benchmark::kMillisecond);
  for (const std::int64_t chunk : {256, 1024}) b->Args({2048, 4096, 384, chunk, threads});
}

void delta_rule_shapes(benchmark::internal::Benchmark* b, std::int64_t threads) {
  b->ArgNames({"tokens", "k_heads", "v_heads", "threads"})->Unit(benchmark::kMillisecond);
  b->Args({4096, 16, 32, threads});
}

void state_space_shapes(benchmark::internal::Benchmark* b, std::int64_t threads) {
  b->ArgNames({"tokens", "groups", "heads", "threads"})->Unit(benchmark::kMillisecond);
  b->Args({4096, 8, 64, threads});
}

template <class Function, class Shapes>
void add(const char* name, Function function, Shapes shapes) {
  shapes(benchmark::RegisterBenchmark(name, function), 1);
  const std::int64_t threads = static_cast<std::int64_t>(usable_cpus().size());
  if (threads > 1) shapes(benchmark::RegisterBenchmark(name, function)->UseRealTime(), threads);
}

void add_all() {
  const auto product = [](Product p, DType type) {
    return [=](benchmark::State& s) { linear(s, p, type, best_bf16_path()); };
  };
  add("linear/fp32", product(forward, DType::f32), linear_shapes);
  add("linear_grad_input/fp32", product(grad_input, DType::f32), linear_shapes);
  add("linear_grad_weight/fp32", product(grad_weight, DType::f32), linear_shapes);
  add("linear/bf16", product(forward, DType::bf16), linear_shapes);
  add("linear_grad_input/bf16", product(grad_input, DType::bf16), linear_shapes);
  add("linear_grad_weight/bf16", product(grad_weight, DType::bf16), linear_shapes);
  add(
      "attention/fp32", [](benchmark::State& s) { attention(s, false); }, attention_shapes);
  add(
      "attention_grad/fp32", [](benchmark::State& s) { attention(s, true); }, attention_shapes);
  add(
      "delta_rule/bf16", [](benchmark::State& s) { delta_rule(s, false); }, delta_rule_shapes);
  add(
      "delta_rule_grad/bf16", [](benchmark::State& s) { delta_rule(s, true); }, delta_rule_shapes);
  add(
      "state_space/bf16", [](benchmark::State& s) { state_space(s, false); }, state_space_shapes);
  add(
      "state_space_grad/bf16", [](benchmark::State& s) { state_space(s, true); }, state_space_shapes);
  add(
      "linear_cross_entropy/fp32", [](benchmark::State& s) { cross_entropy(s, DType::f32); }, cross_entropy_shapes);
  add(
      "linear_cross_entropy/bf16", [](benchmark::State& s) { cross_entropy(s, DType::bf16); }, cross_entropy_shapes);
}

}  // namespace
}  // namespace so::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  so::bench::add_all();
  benchmark::RunSpecifiedBenchmarks();
}
#endif  // HWY_ONCE
