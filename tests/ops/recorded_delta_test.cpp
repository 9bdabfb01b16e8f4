// The ops of a gated delta layer against what transformers' modules of Qwen3.5 compute (tests/fixtures/ops).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/paths.h"
#include "support/random_tensors.h"
#include "support/rig.h"

namespace so::test::recorded_delta_test {
namespace {

using Values = std::vector<double>;

const std::vector<std::int64_t> kDocuments = {1, 64, 150};
constexpr std::int64_t kRows = 215;

// As in make_fixtures.py.
Values hashed(std::int64_t count, std::uint32_t seed, double scale = 1, double shift = 0) {
  Values values;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t x = (static_cast<std::uint32_t>(i) + seed * 100003u) * 2654435761u;
    x = (x ^ (x >> 15)) * 2246822519u;
    x = (x ^ (x >> 13)) * 3266489917u;
    x ^= x >> 16;
    values.push_back(scale * (static_cast<double>(x >> 8) * 0x1p-23 - 1) + shift);
  }
  return values;
}

class Recorded : public ::testing::Test {
 protected:
  Recorded() {
    std::ifstream file(fixtures() + "/ops/gated_delta.json");
    json_ = nlohmann::json::parse(file);
  }
  TestTensor tensor(std::uint32_t seed, std::initializer_list<std::int64_t> shape, double scale = 1, double shift = 0) {
    return TestTensor(rig_.stream(), DType::f32, shape,
                      hashed(Tensor(nullptr, DType::f32, shape).size(), seed, scale, shift));
  }
  TestTensor empty(std::initializer_list<std::int64_t> shape) { return TestTensor(rig_.stream(), DType::f32, shape); }
  TestTensor starts() {
    Values bounds{0};
    for (const std::int64_t length : kDocuments) bounds.push_back(bounds.back() + static_cast<double>(length));
    return TestTensor(rig_.stream(), DType::i32, {4}, bounds);
  }
  // Both are fp32 in different orders of additions: errors are small beside the largest element.
  void expect_recorded(const Values& got, const char* op, const char* name, double error) {
    const Values want = json_[op][name].get<Values>();
    double largest = 0;
    for (const double value : want) largest = std::max(largest, std::abs(value));
    EXPECT_GT(largest, 0) << op << " " << name;
    expect_close(got, want, 0, error * largest, std::string(op) + " " + name);
  }
  // The recorded rows of a tensor whose first dimension is the token.
  Values rows_of(const TestTensor& tensor) {
    const Values all = tensor.values(rig_.stream());
    const auto width = static_cast<std::ptrdiff_t>(all.size()) / kRows;
    Values rows;
    for (const std::int64_t row : json_["rows"].get<std::vector<std::int64_t>>())
      rows.insert(rows.end(), all.begin() + row * width, all.begin() + (row + 1) * width);
    return rows;
  }

  Rig rig_;
  nlohmann::json json_;
};

TEST_F(Recorded, DeltaRule) {
  Stream& s = rig_.stream();
  const std::int64_t k_heads = 2, v_heads = 4, dim = 32;
  const TestTensor q = tensor(1, {kRows, k_heads * dim}, 2), k = tensor(2, {kRows, k_heads * dim}, 2);
  const TestTensor v = tensor(3, {kRows, v_heads * dim}), dout = tensor(4, {kRows, v_heads * dim});
  const TestTensor decay = tensor(5, {kRows, v_heads}, 0.125, -0.125), rate = tensor(6, {kRows, v_heads}, 0.5, 0.5);
  const TestTensor out = empty({kRows, v_heads * dim}), dv = empty({kRows, v_heads * dim});
  const TestTensor dq = empty({kRows, k_heads * dim}), dk = empty({kRows, k_heads * dim});
  const TestTensor ddecay = empty({kRows, v_heads}), drate = empty({kRows, v_heads}), bounds = starts();
  const auto size = DeltaSize{kRows, 3, k_heads, v_heads, dim, dim, DType::f32};
  const OpsMemory& memory = rig_.ops().memory();
  const auto scratch_of = [&](std::size_t bytes) {
    return bytes > 0 ? TestTensor(s, DType::u8, {static_cast<std::int64_t>(bytes)}) : TestTensor();
  };
  const TestTensor scratch = scratch_of(memory.delta_rule(size)),
                   grad_scratch = scratch_of(memory.delta_rule_grad(size));
  Ops::DeltaRule call{.out = {out, 0, v_heads, dim},
                      .q = {q, 0, k_heads, dim},
                      .k = {k, 0, k_heads, dim},
                      .v = {v, 0, v_heads, dim},
                      .decay = decay,
                      .rate = rate,
                      .documents = {bounds, 3},
                      .scratch = scratch};
  rig_.ops().delta_rule(s, call);
  rig_.ops().delta_rule_grad(s, {.dq = {dq, 0, k_heads, dim},
                                 .dk = {dk, 0, k_heads, dim},
                                 .dv = {dv, 0, v_heads, dim},
                                 .ddecay = ddecay,
                                 .drate = drate,
                                 .dout = {dout, 0, v_heads, dim},
                                 .forward = call,
                                 .scratch = grad_scratch});
  const double error = 1e-5;  // transformers goes by chunks, whose systems of equations lose a digit
  expect_recorded(rows_of(out), "delta_rule", "out", error);
  expect_recorded(rows_of(dq), "delta_rule", "dq", error);
  expect_recorded(rows_of(dk), "delta_rule", "dk", error);
  expect_recorded(rows_of(dv), "delta_rule", "dv", error);
  expect_recorded(rows_of(ddecay), "delta_rule", "ddecay", error);
  expect_recorded(rows_of(drate), "delta_rule", "drate", error);

  // The last document alone, for the state that it leaves; recorded are four rows of the second head's.
  const auto last = [&](const TestTensor& t) { return t.tensor().rows(65, 150); };
  const TestTensor state(s, DType::f32, {v_heads, dim, dim},
                         Values(static_cast<std::size_t>(v_heads * dim * dim), 0.0));
  const TestTensor one(s, DType::i32, {2}, {0, 150});
  for (Heads* heads : {&call.out, &call.q, &call.k, &call.v}) heads->rows = heads->rows.rows(65, 150);
  call.decay = last(decay), call.rate = last(rate), call.documents = {one, 1}, call.state = state;
  rig_.ops().delta_rule(s, call);
  const Values states = state.values(s);
  expect_recorded(Values(states.begin() + dim * dim, states.begin() + dim * dim + 4 * dim), "delta_rule", "state",
                  error);
}

TEST_F(Recorded, CausalConv) {
  Stream& s = rig_.stream();
  const std::int64_t channels = 10, taps = 4;
  const TestTensor x = tensor(11, {kRows, channels}, 2), dout = tensor(12, {kRows, channels});
  const TestTensor weight = tensor(13, {channels, 1, taps}), dweight = empty({channels, 1, taps});
  const TestTensor out = empty({kRows, channels}), dx = empty({kRows, channels}), bounds = starts();
  const Ops::CausalConv call{
      .out = {out, 0, 1, channels}, .x = {x, 0, 1, channels}, .weight = weight, .documents = {bounds, 3}};
  rig_.ops().causal_conv(s, call);
  rig_.ops().causal_conv_grad(
      s, {.dx = {dx, 0, 1, channels}, .dweight = dweight, .dout = {dout, 0, 1, channels}, .forward = call});
  const double error = 1e-6;
  expect_recorded(rows_of(out), "causal_conv", "out", error);
  expect_recorded(rows_of(dx), "causal_conv", "dx", error);
  expect_recorded(dweight.values(s), "causal_conv", "dweight", 1e-5);  // sums over all rows
}

TEST_F(Recorded, GatedNorm) {
  Stream& s = rig_.stream();
  const std::int64_t rows = 5, heads = 3, dim = 32;
  const TestTensor x = tensor(21, {rows, heads * dim}), gate = tensor(22, {rows, heads * dim}, 4);
  const TestTensor dout = tensor(23, {rows, heads * dim}), weight = tensor(24, {dim}, 2);
  const TestTensor out = empty({rows, heads * dim}), dx = empty({rows, heads * dim}),
                   dgate = empty({rows, heads * dim});
  const TestTensor dweight = empty({dim}), inv_rms = empty({rows, heads});
  const auto heads_of = [&](const TestTensor& t) { return Heads{t, 0, heads, dim}; };
  const HeadNorm norm{weight, 1e-6f, inv_rms};
  rig_.ops().gated_norm(s, heads_of(out), heads_of(x), heads_of(gate), norm);
  rig_.ops().gated_norm_grad(s, {.dx = heads_of(dx),
                                 .dgate = heads_of(dgate),
                                 .normed = {},
                                 .dweight = dweight,
                                 .dout = heads_of(dout),
                                 .x = heads_of(x),
                                 .gate = heads_of(gate),
                                 .norm = norm});
  const double error = 1e-6;
  expect_recorded(out.values(s), "gated_norm", "out", error);
  expect_recorded(dx.values(s), "gated_norm", "dx", error);
  expect_recorded(dgate.values(s), "gated_norm", "dgate", error);
  expect_recorded(dweight.values(s), "gated_norm", "dweight", error);
}

TEST_F(Recorded, DeltaGates) {
  Stream& s = rig_.stream();
  const std::int64_t rows = 9, heads = 4;
  const TestTensor a = tensor(31, {rows, heads}, 8), b = tensor(32, {rows, heads}, 8);
  const TestTensor a_log = tensor(33, {heads}, 2), dt_bias = tensor(34, {heads}, 2);
  const TestTensor ddecay = tensor(35, {rows, heads}), drate = tensor(36, {rows, heads});
  const TestTensor decay = empty({rows, heads}), rate = empty({rows, heads}), da = empty({rows, heads}),
                   db = empty({rows, heads}), da_log = empty({heads}), ddt_bias = empty({heads});
  const Ops::DeltaGates call{
      .decay = decay, .rate = rate, .a = {a, 0, 1, heads}, .b = {b, 0, 1, heads}, .a_log = a_log, .dt_bias = dt_bias};
  rig_.ops().delta_gates(s, call);
  rig_.ops().delta_gates_grad(s, {.da = {da, 0, 1, heads},
                                  .db = {db, 0, 1, heads},
                                  .da_log = da_log,
                                  .ddt_bias = ddt_bias,
                                  .ddecay = ddecay,
                                  .drate = drate,
                                  .forward = call});
  const double error = 1e-6;
  expect_recorded(decay.values(s), "delta_gates", "decay", error);
  expect_recorded(rate.values(s), "delta_gates", "rate", error);
  expect_recorded(da.values(s), "delta_gates", "da", error);
  expect_recorded(db.values(s), "delta_gates", "db", error);
  expect_recorded(da_log.values(s), "delta_gates", "da_log", error);
  expect_recorded(ddt_bias.values(s), "delta_gates", "ddt_bias", error);
}

}  // namespace
}  // namespace so::test::recorded_delta_test
