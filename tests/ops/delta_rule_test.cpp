#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ops/delta_problem.h"
#include "support/instruction_sets.h"
#include "support/sanitized.h"

namespace so::test::delta_rule_test {
namespace {

// Documents around a chunk's length, one of several chunks and empty ones; states that no vector divides; heads
// with columns between them, on 16-byte boundaries and off them; one value head a key head, and three.
const DeltaCase kCases[] = {{{1, 63, 64, 65, 200}, 2, 4, 128, 128},
                            {{5, 1, 70}, 2, 2, 32, 24, 3, 5},
                            {{0, 40, 0, 3, 129}, 4, 4, 16, 16, 8, 16},
                            {{130}, 1, 3, 20, 33, 1, 1},
                            {{100, 28}, 1, 2, 64, 128, 8, 8}};

// What errors of the arithmetic add up to, relative to the largest element: 8 roundoffs were seen where all is fp32
// and token by token. On a GPU tokens are taken by chunks, whose systems of equations lose some bits, and bf16 data
// goes through the matrix units as bf16.
double delta_error(DType dtype) {
  if (!on_gpu()) return 32 * 0x1p-24;
  return dtype == DType::bf16 ? 4 * 0x1p-8 : 512 * 0x1p-24;
}

void expect_result(const DeltaValues& got, const DeltaValues& want, DType arithmetic, DType stored,
                   const std::string& what) {
  double largest = 0;
  for (const double value : want) largest = std::max(largest, std::abs(value));
  expect_close(got, want, unit_roundoff(stored), delta_error(arithmetic) * largest, what);
}

void expect_results(const DeltaResults& got, const DeltaResults& want, DType dtype, const std::string& what) {
  expect_result(got.out, want.out, dtype, dtype, what + ", out");
  expect_result(got.dq, want.dq, dtype, dtype, what + ", dq");
  expect_result(got.dk, want.dk, dtype, dtype, what + ", dk");
  expect_result(got.dv, want.dv, dtype, dtype, what + ", dv");
  expect_result(got.ddecay, want.ddecay, dtype, DType::f32, what + ", ddecay");
  expect_result(got.drate, want.drate, dtype, DType::f32, what + ", drate");
}

std::vector<std::vector<std::byte>> bytes_of(Stream& s, const DeltaProblem& p) {
  return {p.out.bytes(s), p.dqkv.bytes(s), p.ddecay.bytes(s), p.drate.bytes(s)};
}

TEST(DeltaRule, AgreesWithDoublePrecision) {
  Rig rig;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const DeltaCase& c : kCases) {
      if (sanitized && dtype == DType::bf16 && c.k_dim == 128) continue;  // ten seconds of what fp32 does as well
      const DeltaProblem first(rig.stream(), c, dtype, random_delta_arrays(c, 1));
      const DeltaResults want = delta_reference(c, first.inputs());
      for_each_instruction_set([&] {
        const DeltaProblem p(rig.stream(), c, dtype, random_delta_arrays(c, 1));
        const DeltaValues beside = p.beside();
        p.run(rig);
        expect_results(p.results(), want, dtype, c.name(dtype));
        EXPECT_EQ(p.beside(), beside) << c.name(dtype) << ": columns of no head";
      });
    }
}

// Differences of the forward pass in double: independent of the gradient's formulas.
TEST(DeltaRule, TheGradientAgreesWithFiniteDifferences) {
  Rig rig;
  const DeltaCase c{{4, 3}, 1, 2, 5, 4};
  const DeltaProblem p(rig.stream(), c, DType::f32, random_delta_arrays(c, 3));
  p.run(rig);
  const DeltaResults got = p.results();
  DeltaArrays in = p.inputs();
  const auto slopes = [&](DeltaValues& of) {
    const double step = 1e-5;
    DeltaValues result;
    for (double& at : of) {
      const double kept = at;
      double loss[2] = {0, 0};
      for (const int side : {0, 1}) {
        at = kept + (2 * side - 1) * step;
        const DeltaValues out = delta_reference(c, in, false).out;
        for (std::size_t i = 0; i < out.size(); ++i) loss[side] += out[i] * in.dout[i];
      }
      at = kept;
      result.push_back((loss[1] - loss[0]) / (2 * step));
    }
    return result;
  };
  // Gradients of order 1 in fp32, differences good to step^2 = 1e-10 and 1e-15 / step.
  expect_close(got.dq, slopes(in.q), 0, 1e-5, "dq");
  expect_close(got.dk, slopes(in.k), 0, 1e-5, "dk");
  expect_close(got.dv, slopes(in.v), 0, 1e-5, "dv");
  expect_close(got.ddecay, slopes(in.decay), 0, 1e-5, "ddecay");
  expect_close(got.drate, slopes(in.rate), 0, 1e-5, "drate");
}

// The contents of a document, which depend on its length alone.
DeltaArrays arrays_of(const DeltaCase& c) {
  DeltaArrays all;
  for (const std::int64_t length : c.documents) {
    DeltaCase one = c;
    one.documents = {length};
    DeltaArrays part = random_delta_arrays(one, static_cast<unsigned>(length) * 10);
    const auto append = [](DeltaValues& to, const DeltaValues& from) { to.insert(to.end(), from.begin(), from.end()); };
    append(all.q, part.q), append(all.k, part.k), append(all.v, part.v);
    append(all.decay, part.decay), append(all.rate, part.rate), append(all.dout, part.dout);
  }
  return all;
}

// Documents together are, bit for bit, what each is alone, whatever stands before it: no state leaks.
TEST(DeltaRule, DocumentsTogetherAreWhatTheyAreApart) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::vector<std::int64_t>& lengths :
         {std::vector<std::int64_t>{1, 64, 150, 2, 63}, {150, 2, 63, 64, 1}, {2, 1, 63, 150, 64}}) {
      const DeltaCase c{lengths, 2, 4, 64, 64};
      const DeltaProblem together(s, c, dtype, arrays_of(c));
      together.run(rig);
      const DeltaResults all = together.results();
      std::int64_t begin = 0;
      for (const std::int64_t length : lengths) {
        DeltaCase one = c;
        one.documents = {length};
        const DeltaProblem apart(s, one, dtype, arrays_of(one));
        apart.run(rig);
        const DeltaResults alone = apart.results();
        const auto same = [&](const DeltaValues& whole, const DeltaValues& part, const char* name) {
          const std::ptrdiff_t width = static_cast<std::ptrdiff_t>(part.size()) / length;
          EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin * width))
              << name << " of " << length << " rows of " << name_of(dtype);
        };
        same(all.out, alone.out, "out");
        same(all.dq, alone.dq, "dq");
        same(all.dk, alone.dk, "dk");
        same(all.dv, alone.dv, "dv");
        same(all.ddecay, alone.ddecay, "ddecay");
        same(all.drate, alone.drate, "drate");
        begin += length;
      }
    }
}

// A document in pieces, with the state kept between: token by token, and in pieces around a chunk's length.
TEST(DeltaRule, IsContinued) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool by_token : {false, true}) {
      const DeltaCase c{{201}, 2, 4, 64, 48};
      const DeltaProblem p(s, c, dtype, random_delta_arrays(c, 5));
      const DeltaResults want = delta_reference(c, p.inputs(), false);
      const TestTensor state(s, DType::f32, {c.v_heads, c.k_dim, c.v_dim},
                             DeltaValues(static_cast<std::size_t>(c.v_heads * c.k_dim * c.v_dim), 0.0));
      const std::vector<std::int64_t> pieces =
          by_token ? std::vector<std::int64_t>(201, 1) : std::vector<std::int64_t>{1, 64, 2, 70, 64};
      std::int64_t begin = 0;
      for (const std::int64_t length : pieces) {
        const TestTensor bounds(s, DType::i32, {2}, {0, static_cast<double>(length)});
        DeltaSize size = p.size();
        size.rows = length;
        const std::size_t bytes = rig.ops().memory().delta_rule(size);
        const TestTensor scratch =
            bytes > 0 ? TestTensor(s, DType::u8, {static_cast<std::int64_t>(bytes)}) : TestTensor();
        Ops::DeltaRule call = p.call(scratch, state);
        for (Heads* heads : {&call.out, &call.q, &call.k, &call.v}) heads->rows = heads->rows.rows(begin, length);
        call.decay = call.decay.rows(begin, length), call.rate = call.rate.rows(begin, length);
        call.documents = {bounds, 1};
        rig.ops().delta_rule(s, call);
        s.synchronize();
        begin += length;
      }
      const std::string what = fmt::format("{} pieces, {}", pieces.size(), name_of(dtype));
      expect_result(p.results().out, want.out, dtype, dtype, what + ", out");
      expect_result(state.values(s), want.state, dtype, DType::f32, what + ", state");
    }
}

TEST(DeltaRule, NeitherThreadsNorRepetitionShow) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<std::vector<std::byte>> first;
    for (const int threads : {1, 2, 3, 5, 5}) {
      Rig rig(threads);
      const DeltaCase c{{100, 1, 65, 7}, 3, 6, 48, 40};
      const DeltaProblem p(rig.stream(), c, dtype, random_delta_arrays(c, 7));
      p.run(rig);
      const auto all = bytes_of(rig.stream(), p);
      if (first.empty()) first = all;
      EXPECT_EQ(all, first) << threads << " threads";
    }
  }
}

TEST(DeltaRule, TheGradientOfVMayLieOnThatOfTheResult) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const DeltaCase c{{150, 20}, 2, 4, 32, 32};
    const DeltaProblem p(s, c, dtype, random_delta_arrays(c, 9)), in_place(s, c, dtype, random_delta_arrays(c, 9));
    p.run(rig);
    const std::size_t bytes = rig.ops().memory().delta_rule_grad(p.size());
    const TestTensor scratch = bytes > 0 ? TestTensor(s, DType::u8, {static_cast<std::int64_t>(bytes)}) : TestTensor();
    Ops::DeltaRuleGrad grad = in_place.gradient_call(scratch);
    grad.dv = grad.dout;
    rig.ops().delta_rule_grad(s, grad);
    EXPECT_EQ(in_place.dout.values(s), p.results().dv);
    EXPECT_EQ(in_place.results().dq, p.results().dq);
    EXPECT_EQ(in_place.results().dk, p.results().dk);
  }
}

// A decay that leaves nothing, of any size, begins the document anew; rates of 0 and 1, and keys and queries of zeros
// are ordinary.
TEST(DeltaRule, TakesTheLimits) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const DeltaCase c{{140}, 1, 2, 32, 32};
    DeltaArrays in = random_delta_arrays(c, 11);
    const double huge[] = {-1e4, -100, -3e38, -std::numeric_limits<double>::infinity()};
    for (std::size_t i = 0; i < 4; ++i) in.decay[2 * (20 + 30 * i)] = in.decay[2 * (20 + 30 * i) + 1] = huge[i];
    for (std::size_t i = 0; i < 20; ++i) in.rate[3 * i] = static_cast<double>(i % 2);
    std::fill_n(in.k.begin() + 32 * 7, 32 * 2, 0.0);
    std::fill_n(in.q.begin() + 32 * 60, 32, 0.0);
    const DeltaProblem p(s, c, dtype, in);
    const DeltaResults want = delta_reference(c, p.inputs());
    p.run(rig);
    const DeltaResults got = p.results();
    // Keys and queries of zeros are divided by the square root of epsilon: their gradients are 1e3 times the others.
    expect_results(got, want, dtype, c.name(dtype));
    // What the token after such a decay sees is what the first of a document does.
    DeltaCase rest = c;
    rest.documents = {120};
    const auto from = [](const DeltaValues& values, std::ptrdiff_t width) {
      return DeltaValues(values.begin() + 20 * width, values.end());
    };
    const DeltaProblem later(
        s, rest, dtype,
        {from(in.q, 32), from(in.k, 32), from(in.v, 64), from(in.decay, 2), from(in.rate, 2), from(in.dout, 64)});
    later.run(rig);
    expect_result(later.results().out, from(got.out, 64), dtype, dtype, "out after a decay of -1e4");
    expect_result(later.results().dv, from(got.dv, 64), dtype, dtype, "dv after a decay of -1e4");
  }
}

TEST(DeltaRule, ANanStaysInItsDocument) {
  Rig rig;
  Stream& s = rig.stream();
  const DeltaCase c{{70, 66, 80}, 2, 2, 32, 32};
  DeltaArrays in = random_delta_arrays(c, 13);
  const DeltaProblem clean(s, c, DType::f32, in);
  clean.run(rig);
  in.v[static_cast<std::size_t>(75 * 2 * 32 + 3)] = std::numeric_limits<double>::quiet_NaN();
  const DeltaProblem p(s, c, DType::f32, in);
  p.run(rig);
  const DeltaValues want = clean.results().out, got = p.results().out;
  EXPECT_TRUE(std::isnan(got[75 * 64 + 3]));
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + 70 * 64, want.begin()));
  EXPECT_TRUE(std::equal(got.begin() + 136 * 64, got.end(), want.begin() + 136 * 64));
  const DeltaValues dk = p.results().dk, dk_want = clean.results().dk;
  EXPECT_TRUE(std::equal(dk.begin(), dk.begin() + 70 * 64, dk_want.begin()));
  EXPECT_TRUE(std::equal(dk.begin() + 136 * 64, dk.end(), dk_want.begin() + 136 * 64));
}

TEST(DeltaRule, RefusesWrongArguments) {
  Rig rig;
  Stream& s = rig.stream();
  Ops& ops = rig.ops();
  const DeltaCase c{{4, 4}, 2, 4, 16, 16}, odd{{4, 4}, 2, 3, 16, 16}, narrow{{4, 4}, 2, 4, 8, 16};
  const DeltaProblem p(s, c, DType::bf16, random_delta_arrays(c, 1)),
      three(s, odd, DType::bf16, random_delta_arrays(odd, 1)),
      thin(s, narrow, DType::bf16, random_delta_arrays(narrow, 1)), single(s, c, DType::f32, random_delta_arrays(c, 1));
  EXPECT_THROW(ops.delta_rule(s, three.call()), Bug);  // 3 value heads on 2 key heads
  Ops::DeltaRule call = p.call();
  call.k = thin.call().k;
  EXPECT_THROW(ops.delta_rule(s, call), Bug);
  call = p.call(), call.v = single.call().v;
  EXPECT_THROW(ops.delta_rule(s, call), Bug);
  call = p.call(), call.rate = three.rate;
  EXPECT_THROW(ops.delta_rule(s, call), Bug);
  const TestTensor state(s, DType::f32, {4, 16, 16});
  call = p.call(), call.state = state;  // two documents
  EXPECT_THROW(ops.delta_rule(s, call), Bug);
  Ops::DeltaRuleGrad grad = p.gradient_call();
  grad.dq = thin.gradient_call().dq;
  EXPECT_THROW(ops.delta_rule_grad(s, grad), Bug);
  grad = p.gradient_call(), grad.ddecay = three.ddecay;
  EXPECT_THROW(ops.delta_rule_grad(s, grad), Bug);
  grad = p.gradient_call(), grad.forward.state = state;
  EXPECT_THROW(ops.delta_rule_grad(s, grad), Bug);
}

TEST(DeltaRule, DocumentsOutsideTheRowsPoisonTheStream) {
  SO_CPU_ONLY("on a GPU a trap ends the program");
  for (const DeltaValues& bounds : {DeltaValues{0, 5}, DeltaValues{-1, 4}, DeltaValues{3, 2}}) {
    Rig rig;
    Stream& s = rig.stream();
    const DeltaCase c{{4}, 1, 1, 8, 8};
    const DeltaProblem p(s, c, DType::f32, random_delta_arrays(c, 1));
    const TestTensor starts(s, DType::i32, {2}, bounds);
    Ops::DeltaRule call = p.call();
    call.documents.starts = starts;
    rig.ops().delta_rule(s, call);
    EXPECT_THROW(s.synchronize(), Bug);
  }
}

}  // namespace
}  // namespace so::test::delta_rule_test
