#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "ops/space_problem.h"
#include "support/sanitized.h"

namespace so::test::state_space_test {
namespace {

// Documents around a chunk's length, of several chunks and of several of a GPU's segments, and empty ones; sizes of
// Nemotron's, and that no vector divides; heads with columns between them, on 16-byte boundaries and off them; one head
// a group, three and eight.
const SpaceCase kCases[] = {{{1, 63, 64, 65, 300}, 1, 8, 128, 64},     {{600, 3, 1100}, 1, 2, 128, 64},
                            {{127, 128, 129, 2}, 2, 4, 128, 64, 8, 8}, {{5, 1, 70}, 2, 2, 32, 24, 3, 5},
                            {{0, 40, 0, 3, 129}, 4, 4, 16, 16, 8, 16}, {{130}, 1, 3, 20, 33, 1, 1},
                            {{100, 28}, 1, 2, 128, 32, 8, 8}};

// What errors of the arithmetic add up to, relative to the largest element. On a GPU bf16 data goes through the matrix
// units as bf16, and so do the states that chunks begin with.
double space_error(DType dtype) {
  if (on_gpu() && dtype == DType::bf16) return 4 * 0x1p-8;
  return 32 * 0x1p-24;
}

void expect_result(const SpaceValues& got, const SpaceValues& want, DType arithmetic, DType stored,
                   const std::string& what) {
  double largest = 0;
  for (const double value : want) largest = std::max(largest, std::abs(value));
  expect_close(got, want, unit_roundoff(stored), space_error(arithmetic) * largest, what);
}

void expect_results(const SpaceResults& got, const SpaceResults& want, DType dtype, const std::string& what) {
  expect_result(got.out, want.out, dtype, dtype, what + ", out");
  expect_result(got.dx, want.dx, dtype, dtype, what + ", dx");
  expect_result(got.db, want.db, dtype, dtype, what + ", db");
  expect_result(got.dc, want.dc, dtype, dtype, what + ", dc");
  expect_result(got.ddecay, want.ddecay, dtype, DType::f32, what + ", ddecay");
  expect_result(got.dstep, want.dstep, dtype, DType::f32, what + ", dstep");
  expect_result(got.dskip, want.dskip, dtype, DType::f32, what + ", dskip");
}

std::vector<std::vector<std::byte>> bytes_of(Stream& s, const SpaceProblem& p) {
  return {p.out.bytes(s), p.dxbc.bytes(s), p.ddecay.bytes(s), p.dstep.bytes(s), p.dskip.bytes(s)};
}

TEST(StateSpace, AgreesWithDoublePrecision) {
  Rig rig;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const SpaceCase& c : kCases) {
      if (sanitized && dtype == DType::bf16 && c.k_dim == 128) continue;  // seconds of what fp32 does as well
      const SpaceProblem p(rig.stream(), c, dtype, random_space_arrays(c, 1));
      const SpaceResults want = space_reference(c, p.inputs());
      const SpaceValues beside = p.beside();
      p.run(rig);
      expect_results(p.results(), want, dtype, c.name(dtype));
      EXPECT_EQ(p.beside(), beside) << c.name(dtype) << ": columns of no head";
    }
}

// Differences of the forward pass in double: independent of the gradient's formulas.
TEST(StateSpace, TheGradientAgreesWithFiniteDifferences) {
  Rig rig;
  const SpaceCase c{{4, 3}, 1, 2, 5, 4};
  const SpaceProblem p(rig.stream(), c, DType::f32, random_space_arrays(c, 3));
  p.run(rig);
  const SpaceResults got = p.results();
  SpaceArrays in = p.inputs();
  const auto slopes = [&](SpaceValues& of) {
    const double step = 1e-5;
    SpaceValues result;
    for (double& at : of) {
      const double kept = at;
      double loss[2] = {0, 0};
      for (const int side : {0, 1}) {
        at = kept + (2 * side - 1) * step;
        const SpaceValues out = space_reference(c, in, false).out;
        for (std::size_t i = 0; i < out.size(); ++i) loss[side] += out[i] * in.dout[i];
      }
      at = kept;
      result.push_back((loss[1] - loss[0]) / (2 * step));
    }
    return result;
  };
  // Gradients of order 1 in fp32, differences good to step^2 = 1e-10 and 1e-15 / step.
  expect_close(got.dx, slopes(in.x), 0, 1e-5, "dx");
  expect_close(got.db, slopes(in.b), 0, 1e-5, "db");
  expect_close(got.dc, slopes(in.c), 0, 1e-5, "dc");
  expect_close(got.ddecay, slopes(in.decay), 0, 1e-5, "ddecay");
  expect_close(got.dstep, slopes(in.step), 0, 1e-5, "dstep");
  expect_close(got.dskip, slopes(in.skip), 0, 1e-5, "dskip");
}

// The contents of a document, which depend on its length alone.
SpaceArrays arrays_of(const SpaceCase& c) {
  SpaceArrays all;
  for (const std::int64_t length : c.documents) {
    SpaceCase one = c;
    one.documents = {length};
    SpaceArrays part = random_space_arrays(one, static_cast<unsigned>(length) * 10);
    const auto append = [](SpaceValues& to, const SpaceValues& from) { to.insert(to.end(), from.begin(), from.end()); };
    append(all.x, part.x), append(all.b, part.b), append(all.c, part.c);
    append(all.decay, part.decay), append(all.step, part.step), append(all.dout, part.dout);
    all.skip = part.skip;
  }
  return all;
}

// Documents together are, bit for bit, what each is alone, whatever stands before it: no state leaks.
TEST(StateSpace, DocumentsTogetherAreWhatTheyAreApart) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t k_dim : {48, 128})
      for (const std::vector<std::int64_t>& lengths :
           {std::vector<std::int64_t>{1, 64, 150, 2, 63}, {150, 2, 63, 64, 1}, {2, 1, 63, 150, 64}, {600, 64, 513}}) {
        const SpaceCase c{lengths, 2, 4, k_dim, 64};
        const SpaceProblem together(s, c, dtype, arrays_of(c));
        together.run(rig);
        const SpaceResults all = together.results();
        std::int64_t begin = 0;
        for (const std::int64_t length : lengths) {
          SpaceCase one = c;
          one.documents = {length};
          const SpaceProblem apart(s, one, dtype, arrays_of(one));
          apart.run(rig);
          const SpaceResults alone = apart.results();
          const auto same = [&](const SpaceValues& whole, const SpaceValues& part, const char* name) {
            const std::ptrdiff_t width = static_cast<std::ptrdiff_t>(part.size()) / length;
            EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin * width))
                << name << " of " << length << " rows of " << name_of(dtype);
          };
          same(all.out, alone.out, "out");
          same(all.dx, alone.dx, "dx");
          same(all.db, alone.db, "db");
          same(all.dc, alone.dc, "dc");
          same(all.ddecay, alone.ddecay, "ddecay");
          same(all.dstep, alone.dstep, "dstep");
          begin += length;
        }
      }
}

// A document in pieces, with the state kept between: token by token, and in pieces around a chunk's and a segment's
// length.
TEST(StateSpace, IsContinued) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t k_dim : {40, 128})
      for (const std::vector<std::int64_t>& pieces :
           {std::vector<std::int64_t>(201, 1), {1, 64, 2, 70, 64}, {700, 520, 3}}) {
        const SpaceCase c{{std::accumulate(pieces.begin(), pieces.end(), std::int64_t{0})}, 2, 4, k_dim, 64};
        const SpaceProblem p(s, c, dtype, random_space_arrays(c, 5));
        const SpaceResults want = space_reference(c, p.inputs(), false);
        const TestTensor state(s, DType::f32, {c.heads, c.k_dim, c.v_dim},
                               SpaceValues(static_cast<std::size_t>(c.heads * c.k_dim * c.v_dim), 0.0));
        std::int64_t begin = 0;
        for (const std::int64_t length : pieces) {
          const TestTensor bounds(s, DType::i32, {2}, {0, static_cast<double>(length)});
          StateSpaceSize size = p.size();
          size.rows = length;
          const std::size_t bytes = rig.ops().memory().state_space(size);
          const TestTensor scratch =
              bytes > 0 ? TestTensor(s, DType::u8, {static_cast<std::int64_t>(bytes)}) : TestTensor();
          Ops::StateSpace call = p.call(scratch, state);
          for (Heads* heads : {&call.out, &call.x, &call.b, &call.c}) heads->rows = heads->rows.rows(begin, length);
          call.decay = call.decay.rows(begin, length), call.step = call.step.rows(begin, length);
          call.documents = {bounds, 1};
          rig.ops().state_space(s, call);
          s.synchronize();
          begin += length;
        }
        const std::string what = fmt::format("{} pieces, {}", pieces.size(), name_of(dtype));
        expect_result(p.results().out, want.out, dtype, dtype, what + ", out");
        expect_result(state.values(s), want.state, dtype, DType::f32, what + ", state");
      }
}

TEST(StateSpace, NeitherThreadsNorRepetitionShow) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<std::vector<std::byte>> first;
    for (const int threads : {1, 2, 3, 5, 5}) {
      Rig rig(threads);
      const SpaceCase c{{100, 1, 165, 7}, 2, 6, 128, 64};
      const SpaceProblem p(rig.stream(), c, dtype, random_space_arrays(c, 7));
      p.run(rig);
      const auto all = bytes_of(rig.stream(), p);
      if (first.empty()) first = all;
      EXPECT_EQ(all, first) << threads << " threads";
    }
  }
}

// The gradient of skip is added to or left out, in either format. Rows of no document count for nothing, and are left
// alone.
TEST(StateSpace, TheGradientOfSkipIsAddedUp) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const SpaceCase c{{70, 600, 10}, 1, 4, 128, 64};
    const SpaceProblem p(s, c, dtype, random_space_arrays(c, 15));
    SpaceCase inner = c;
    inner.documents = {600};
    SpaceArrays in = p.inputs();
    const auto middle = [](const SpaceValues& of, std::ptrdiff_t width) {
      return SpaceValues(of.begin() + 70 * width, of.begin() + 670 * width);
    };
    in.x = middle(in.x, 256), in.b = middle(in.b, 128), in.c = middle(in.c, 128), in.dout = middle(in.dout, 256);
    in.decay = middle(in.decay, 4), in.step = middle(in.step, 4);
    const SpaceResults want = space_reference(inner, in);
    const TestTensor starts(s, DType::i32, {2}, {70, 670}), dskip(s, dtype, {4}, {1, -2, 3, 0.5});
    const std::size_t bytes = rig.ops().memory().state_space_grad(p.size());
    const TestTensor scratch = bytes > 0 ? TestTensor(s, DType::u8, {static_cast<std::int64_t>(bytes)}) : TestTensor();
    Ops::StateSpaceGrad grad = p.gradient_call(scratch);
    grad.forward.documents = {starts, 1};
    grad.dskip = dskip, grad.dskip_mode = Accumulate::add;
    const SpaceValues before = p.results().dx;
    rig.ops().state_space_grad(s, grad);
    SpaceValues sum{1, -2, 3, 0.5};
    for (std::size_t h = 0; h < 4; ++h) sum[h] += want.dskip[h];
    expect_result(dskip.values(s), sum, dtype, dtype, "dskip");
    const SpaceValues dx = p.results().dx;
    expect_result(middle(dx, 256), want.dx, dtype, dtype, "dx");
    EXPECT_TRUE(std::equal(dx.begin(), dx.begin() + 70 * 256, before.begin()));
    EXPECT_TRUE(std::equal(dx.begin() + 670 * 256, dx.end(), before.begin() + 670 * 256));
    grad.dskip = Tensor();
    rig.ops().state_space_grad(s, grad);
    EXPECT_EQ(p.results().dx, dx);
  }
}

// A decay that leaves nothing, of any size, begins the document anew; steps of 0 and rows of zeros are ordinary.
TEST(StateSpace, TakesTheLimits) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t k_dim : {32, 128}) {
      const SpaceCase c{{140}, 1, 2, k_dim, 64};
      SpaceArrays in = random_space_arrays(c, 11);
      const double huge[] = {-1e4, -100, -3e38, -std::numeric_limits<double>::infinity()};
      for (std::size_t i = 0; i < 4; ++i) in.decay[2 * (20 + 30 * i)] = in.decay[2 * (20 + 30 * i) + 1] = huge[i];
      for (std::size_t i = 0; i < 20; ++i) in.step[3 * i] = static_cast<double>(i % 2);
      std::fill_n(in.b.begin() + k_dim * 7, k_dim * 2, 0.0);
      std::fill_n(in.c.begin() + k_dim * 60, k_dim, 0.0);
      const SpaceProblem p(s, c, dtype, in);
      const SpaceResults want = space_reference(c, p.inputs());
      p.run(rig);
      expect_results(p.results(), want, dtype, c.name(dtype));
      // What the token after such a decay sees is what the first of a document does.
      SpaceCase rest = c;
      rest.documents = {120};
      const auto from = [](const SpaceValues& values, std::ptrdiff_t width) {
        return SpaceValues(values.begin() + 20 * width, values.end());
      };
      const SpaceProblem later(s, rest, dtype,
                               {from(in.x, 128), from(in.b, k_dim), from(in.c, k_dim), from(in.decay, 2),
                                from(in.step, 2), from(in.dout, 128), in.skip});
      later.run(rig);
      expect_result(later.results().out, from(want.out, 128), dtype, dtype, "out after a decay of -1e4");
      expect_result(later.results().dx, from(want.dx, 128), dtype, dtype, "dx after a decay of -1e4");
    }
}

TEST(StateSpace, ANanStaysInItsDocument) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const SpaceCase c{{70, 66, 80}, 1, 2, 128, 64};
    SpaceArrays in = random_space_arrays(c, 13);
    const SpaceProblem clean(s, c, dtype, in);
    clean.run(rig);
    in.x[static_cast<std::size_t>(75 * 2 * 64 + 3)] = std::numeric_limits<double>::quiet_NaN();
    const SpaceProblem p(s, c, dtype, in);
    p.run(rig);
    const SpaceValues want = clean.results().out, got = p.results().out;
    EXPECT_TRUE(std::isnan(got[75 * 128 + 3]));
    EXPECT_TRUE(std::equal(got.begin(), got.begin() + 70 * 128, want.begin()));
    EXPECT_TRUE(std::equal(got.begin() + 136 * 128, got.end(), want.begin() + 136 * 128));
    const SpaceValues db = p.results().db, db_want = clean.results().db;
    EXPECT_TRUE(std::equal(db.begin(), db.begin() + 70 * 128, db_want.begin()));
    EXPECT_TRUE(std::equal(db.begin() + 136 * 128, db.end(), db_want.begin() + 136 * 128));
  }
}

TEST(StateSpace, RefusesWrongArguments) {
  Rig rig;
  Stream& s = rig.stream();
  Ops& ops = rig.ops();
  const SpaceCase c{{4, 4}, 2, 4, 16, 16}, odd{{4, 4}, 2, 3, 16, 16}, narrow{{4, 4}, 2, 4, 8, 16};
  const SpaceProblem p(s, c, DType::bf16, random_space_arrays(c, 1)),
      three(s, odd, DType::bf16, random_space_arrays(odd, 1)),
      thin(s, narrow, DType::bf16, random_space_arrays(narrow, 1)), single(s, c, DType::f32, random_space_arrays(c, 1));
  EXPECT_THROW(ops.state_space(s, three.call()), Bug);  // 3 heads in 2 groups
  Ops::StateSpace call = p.call();
  call.c = thin.call().c;
  EXPECT_THROW(ops.state_space(s, call), Bug);
  call = p.call(), call.b = single.call().b;
  EXPECT_THROW(ops.state_space(s, call), Bug);
  call = p.call(), call.step = three.step;
  EXPECT_THROW(ops.state_space(s, call), Bug);
  call = p.call(), call.skip = single.skip;
  EXPECT_THROW(ops.state_space(s, call), Bug);
  const TestTensor state(s, DType::f32, {4, 16, 16});
  call = p.call(), call.state = state;  // two documents
  EXPECT_THROW(ops.state_space(s, call), Bug);
  Ops::StateSpaceGrad grad = p.gradient_call();
  grad.db = thin.gradient_call().db;
  EXPECT_THROW(ops.state_space_grad(s, grad), Bug);
  grad = p.gradient_call(), grad.ddecay = three.ddecay;
  EXPECT_THROW(ops.state_space_grad(s, grad), Bug);
  grad = p.gradient_call(), grad.dskip = three.dskip;
  EXPECT_THROW(ops.state_space_grad(s, grad), Bug);
  grad = p.gradient_call(), grad.dx = grad.dout;
  EXPECT_THROW(ops.state_space_grad(s, grad), Bug);
  grad = p.gradient_call(), grad.forward.state = state;
  EXPECT_THROW(ops.state_space_grad(s, grad), Bug);
}

TEST(StateSpace, DocumentsOutsideTheRowsPoisonTheStream) {
  SO_CPU_ONLY("on a GPU a trap ends the program");
  for (const SpaceValues& bounds : {SpaceValues{0, 5}, SpaceValues{-1, 4}, SpaceValues{3, 2}}) {
    Rig rig;
    Stream& s = rig.stream();
    const SpaceCase c{{4}, 1, 1, 8, 8};
    const SpaceProblem p(s, c, DType::f32, random_space_arrays(c, 1));
    const TestTensor starts(s, DType::i32, {2}, bounds);
    Ops::StateSpace call = p.call();
    call.documents.starts = starts;
    rig.ops().state_space(s, call);
    EXPECT_THROW(s.synchronize(), Bug);
  }
}

}  // namespace
}  // namespace so::test::state_space_test
