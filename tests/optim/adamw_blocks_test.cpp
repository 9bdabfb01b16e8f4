// AdamW over moments in 8 bits: the codes, and the bits of the contract with every instruction set this machine has,
// kind of store, length, alignment and number of threads.
#include <algorithm>
#include <cfloat>
#include <limits>
#include <random>

#include "base/error.h"
#include "base/thread_pool.h"
#include "optim/adamw_tuning.h"
#include "optim/moment_twin.h"
#include "support/label.h"

namespace so {
namespace {

const AdamWStep kBlockStep = make_adamw_step({0.9, 0.999, 1e-8}, 3e-4, 0.05, 7, 0.731f);

std::vector<float> spread_numbers(std::size_t count, unsigned seed, float low, float high) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(low, high);
  std::vector<float> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(normal(random) * std::pow(10.0f, exponent(random)));
  return all;
}

std::vector<bf16> halved(const std::vector<float>& values) {
  std::vector<bf16> half;
  for (const float x : values) half.push_back(bf16(x));
  return half;
}

// State before and after a step.
struct BlockCase {
  std::vector<float> g, p, new_p;
  std::vector<bf16> half_g, half_p;  // of the gradient, and of new_p
  TwinMoments old, updated;

  BlockCase(const AdamWStep& step, bool decay, std::vector<float> gradient, std::vector<float> master,
            TwinMoments moments, bool half_gradient = false)
      : g(std::move(gradient)), p(std::move(master)), half_g(halved(g)), old(std::move(moments)) {
    std::vector<float> m, v;
    for (std::size_t i = 0; i < g.size(); ++i) {
      const float from = half_gradient ? static_cast<float>(half_g[i]) : g[i];
      const TwinElement x = adamw_twin(step, decay, from, {p[i], old.first(i), old.second(i)});
      new_p.push_back(x.p);
      m.push_back(x.m);
      v.push_back(x.v);
    }
    half_p = halved(new_p);
    updated = twin_moments(m, v, step.dither);
  }
};

BlockCase random_case(std::size_t count, unsigned seed, bool half_gradient = false) {
  std::vector<float> m = spread_numbers(count, seed + 2, -12, 4), v = spread_numbers(count, seed + 3, -20, 4);
  for (float& x : v) x = std::abs(x);
  return BlockCase(kBlockStep, true, spread_numbers(count, seed, -12, 4), spread_numbers(count, seed + 1, -1, 0),
                   twin_moments(m, v, 5), half_gradient);
}

class AdamWBlocks : public testing::Test {
  AdamWChoiceGuard guard_;
};
SO_LABEL(no_tsan, "AdamWBlocks.*");

TEST(MomentCodes, HaveTheValuesOfTheirBits) {
  for (unsigned code = 0; code < 128; ++code) EXPECT_EQ(FirstMomentCodes::value(code), twin_value(4, 7, code)) << code;
  for (unsigned code = 0; code < 256; ++code) EXPECT_EQ(SecondMomentCodes::value(code), twin_value(3, 8, code)) << code;
  EXPECT_EQ(FirstMomentCodes::value(127), 2 - 0x1p-4f);
  EXPECT_EQ(SecondMomentCodes::value(255), 2 - 0x1p-3f);
  EXPECT_EQ(SecondMomentCodes::value(1), 0x1p-33f);
}

// So fp32 carries a block without loss, whatever the dither.
TEST(MomentCodes, DecodedAreTheSameEncoded) {
  for (const float scale : {0x1p-90f, 0x1p-7f, 1.0f, 0x1p126f}) {
    const MomentScale found(std::bit_cast<std::uint32_t>(scale * 1.75f));
    EXPECT_EQ(found.value, scale);
    for (const std::uint32_t dither : {0u, FirstMomentCodes::half, (1u << FirstMomentCodes::shift) - 1})
      for (unsigned code = 0; code < 256; ++code) {
        const auto byte = static_cast<std::uint8_t>(code);
        ASSERT_EQ(first_moment_code(first_moment_value(byte, scale), found, dither), code) << scale;
      }
    for (const std::uint32_t dither : {0u, SecondMomentCodes::half, (1u << SecondMomentCodes::shift) - 1})
      for (unsigned code = 0; code < 256; ++code) {
        const auto byte = static_cast<std::uint8_t>(code);
        ASSERT_EQ(second_moment_code(second_moment_value(byte, scale), found, dither), code) << scale;
      }
  }
}

TEST(MomentCodes, RoundUpInProportion) {
  const MomentScale scale(std::bit_cast<std::uint32_t>(1.0f));
  // A quarter of the way from 1.25 to 1.375, and in a subnormal code.
  for (const auto& [value, code] : {std::pair{1.28125f, 250u}, std::pair{2.25f * 0x1p-33f, 2u}}) {
    int up = 0;
    for (std::uint32_t dither = 0; dither < 1u << SecondMomentCodes::shift; dither += 1024) {
      const unsigned got = second_moment_code(value, scale, dither);
      ASSERT_TRUE(got == code || got == code + 1) << got;
      up += got == code + 1;
    }
    EXPECT_EQ(up, 256) << "of 1024";
  }
}

TEST(MomentCodes, ASecondMomentIsNeverRoundedToZero) {
  const MomentScale scale(std::bit_cast<std::uint32_t>(1.0f));
  for (const float value : {0x1p-40f, FLT_MIN, std::numeric_limits<float>::denorm_min()})
    EXPECT_EQ(second_moment_code(value, scale, 0), 1) << value;
  EXPECT_EQ(second_moment_code(0.0f, scale, (1u << SecondMomentCodes::shift) - 1), 0);
}

void check_blocks(const BlockCase& c, bool half_gradient, std::size_t count, std::size_t offset) {
  const auto size = static_cast<std::size_t>(moment_blocks(static_cast<std::int64_t>(count)));
  BlockCase expected = c;
  for (auto* values : {&expected.p, &expected.new_p}) values->resize(count);
  // A short last block has a scale of its own.
  std::vector<float> g(c.g.begin(), c.g.begin() + static_cast<std::ptrdiff_t>(count)), p = expected.p;
  TwinMoments old = c.old;
  for (auto* codes : {&old.m, &old.v}) codes->resize(count);
  for (auto* scales : {&old.m_scales, &old.v_scales}) scales->resize(size);
  expected = BlockCase(kBlockStep, true, g, p, old, half_gradient);

  const GradientSpan gradient = half_gradient ? GradientSpan(expected.half_g) : GradientSpan(expected.g);
  for (const bool in_place : {false, true})
    for (int weights = 0; weights < 3; ++weights) {
      std::vector<float> from(count + offset), to(count + offset), w(count + offset);
      std::vector<bf16> half(count + offset);
      std::copy(expected.p.begin(), expected.p.end(), from.begin() + static_cast<std::ptrdiff_t>(offset));
      TwinMoments now = expected.old, beside(count);
      const AdamWState in = now.state(from.data() + offset), out = in_place ? in : beside.state(to.data() + offset);
      WeightSpan written;
      if (weights == 1) written = std::span(w).subspan(offset);
      if (weights == 2) written = std::span(half).subspan(offset);
      adamw_update(kBlockStep, true, gradient, in, out, written);
      const std::vector<float>& master = in_place ? from : to;
      ASSERT_TRUE(same_bits(std::vector<float>(master.begin() + static_cast<std::ptrdiff_t>(offset), master.end()),
                            expected.new_p));
      const TwinMoments& moments = in_place ? now : beside;
      ASSERT_EQ(moments.m_scales, expected.updated.m_scales);
      ASSERT_EQ(moments.v_scales, expected.updated.v_scales);
      ASSERT_EQ(moments.m, expected.updated.m);
      ASSERT_EQ(moments.v, expected.updated.v);
      if (!in_place) {
        ASSERT_EQ(now, expected.old) << "the old state must survive";
      }
      if (weights == 1) {
        ASSERT_TRUE(
            same_bits(std::vector<float>(w.begin() + static_cast<std::ptrdiff_t>(offset), w.end()), expected.new_p));
      }
      if (weights == 2) {
        ASSERT_TRUE(same_bits(std::vector<bf16>(half.begin() + static_cast<std::ptrdiff_t>(offset), half.end()),
                              expected.half_p));
      }
    }
}

TEST_F(AdamWBlocks, BitsForEveryLengthAlignmentAndStore) {
  for (const bool half_gradient : {false, true}) {
    const BlockCase c = random_case(900, 1);
    for (const std::string& set : adamw_instruction_sets()) {
      adamw_use_instruction_set(set);
      for (const AdamWStores stores : {AdamWStores::cached, AdamWStores::stream_weights, AdamWStores::stream_all}) {
        adamw_use_stores(stores);
        for (const std::size_t count :
             {0u, 1u, 3u, 8u, 17u, 31u, 63u, 64u, 100u, 255u, 256u, 257u, 300u, 512u, 700u, 768u, 900u})
          for (const std::size_t offset : {0u, 1u, 5u, 16u}) {
            SCOPED_TRACE(fmt::format("{} stores {} count {} offset {}", set, static_cast<int>(stores), count, offset));
            ASSERT_NO_FATAL_FAILURE(check_blocks(c, half_gradient, count, offset));
          }
      }
    }
  }
}

// A preview reads, so it may begin within a block.
TEST_F(AdamWBlocks, BitsOfAPreviewFromAnyElementOn) {
  const BlockCase c = random_case(1000, 9, true);
  TwinMoments old = c.old;
  std::vector<float> p = c.p;
  const AdamWState state = old.state(p.data());
  ThreadPool pool("test", {0, 0, 0}, false);
  for (const std::string& set : adamw_instruction_sets()) {
    adamw_use_instruction_set(set);
    for (const std::size_t begin : {0u, 1u, 100u, 256u, 300u, 511u})
      for (const std::size_t count : {1u, 30u, 156u, 157u, 256u, 489u}) {
        const auto at = static_cast<std::ptrdiff_t>(begin);
        const AdamWStateView from(p.data() + begin, MomentsView(state.m) + at, MomentsView(state.v) + at);
        const auto gradient = std::span<const bf16>(c.half_g).subspan(begin, count);
        std::vector<float> w(count);
        std::vector<bf16> half(count);
        adamw_preview(kBlockStep, true, gradient, from, w);
        pool.run(adamw_preview_work(kBlockStep, true, gradient, from, half));
        const auto part = [&](const auto& all) {
          return std::vector(all.begin() + at, all.begin() + at + static_cast<std::ptrdiff_t>(count));
        };
        ASSERT_TRUE(same_bits(w, part(c.new_p))) << set << " " << begin << " " << count;
        ASSERT_TRUE(same_bits(half, part(c.half_p))) << set << " " << begin << " " << count;
      }
    EXPECT_EQ(old, c.old) << set;
  }
}

// Large enough to be cut into several pieces and to be streamed of its own accord.
TEST_F(AdamWBlocks, BitsForAnyNumberOfThreadsAndTuning) {
  const std::size_t count = 150'001;
  const BlockCase c = random_case(count, 4, true);
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool("test", std::vector<int>(static_cast<std::size_t>(threads), 0), false);
    adamw_use_tuning({.tile = threads % 2 == 0 ? AdamWTuning::least_tile + AdamWTuning::line : AdamWTuning{}.tile,
                      .prefetch = threads * 5});
    for (const bool in_place : {false, true}) {
      std::vector<float> p = c.p, to(count);
      std::vector<bf16> w(count);
      TwinMoments now = c.old, beside(count);
      const AdamWState in = now.state(p.data()), out = in_place ? in : beside.state(to.data());
      adamw_update_parallel(pool, kBlockStep, true, c.half_g, in, out, w);
      EXPECT_TRUE(same_bits(in_place ? p : to, c.new_p)) << threads;
      EXPECT_EQ(in_place ? now : beside, c.updated) << threads;
      EXPECT_TRUE(same_bits(w, c.half_p)) << threads;
    }
    adamw_use_tuning({});
  }
}

TEST_F(AdamWBlocks, OfSpecialValues) {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN(),
                  tiny = std::numeric_limits<float>::denorm_min();
  // A block for each of these among zeros, and among numbers.
  for (const float special : {0.0f, -0.0f, tiny, FLT_MIN, 1e-27f, 1e-20f, 3e19f, FLT_MAX, -FLT_MAX, inf, nan})
    for (const float others : {0.0f, 1e-3f, 1e15f}) {
      std::vector<float> g(300, others), p(300, 0.5f), zero(300);
      g[5] = g[270] = special;
      const BlockCase first(kBlockStep, true, g, p, twin_moments(zero, zero, 1));
      const BlockCase second(kBlockStep, true, g, p, first.updated);  // from what came of it
      for (const std::string& set : adamw_instruction_sets()) {
        adamw_use_instruction_set(set);
        for (const BlockCase* c : {&first, &second}) {
          std::vector<float> to = c->p;
          TwinMoments now = c->old;
          const AdamWState state = now.state(to.data());
          adamw_update(kBlockStep, true, c->g, state, state);
          EXPECT_TRUE(same_bits(to, c->new_p)) << set << " " << special << " " << others;
          EXPECT_TRUE(same_bits(now.m_scales, c->updated.m_scales)) << set << " " << special << " " << others;
          EXPECT_TRUE(same_bits(now.v_scales, c->updated.v_scales)) << set << " " << special << " " << others;
          for (std::size_t i = 0; i < now.m.size(); ++i) {
            const bool finite = std::isfinite(now.m_scales[i / moment_block]);
            EXPECT_EQ(std::isfinite(now.first(i)), finite);
            if (finite) {
              ASSERT_EQ(now.m[i], c->updated.m[i]) << set << " " << special << " " << others << " " << i;
            }
            if (std::isfinite(now.v_scales[i / moment_block])) {
              ASSERT_EQ(now.v[i], c->updated.v[i]) << set << " " << special << " " << others << " " << i;
            }
          }
        }
      }
    }
}

// Beside small gradients a second moment falls by 1 - beta2 a step, on the average, though a code is 120 such steps
// wide; by rounding to the nearest it would not fall at all.
TEST_F(AdamWBlocks, SecondMomentsFall) {
  const std::size_t count = 16 * moment_block;
  const std::vector<float> zero(count), one(count, 1.0f);
  std::vector<float> p(count);
  TwinMoments moments = twin_moments(zero, one, 1);
  const AdamWState state = moments.state(p.data());
  for (int t = 1; t <= 1000; ++t) {
    std::vector<float> g = spread_numbers(count, static_cast<unsigned>(t), -3, -2);
    for (std::size_t i = 0; i < count; i += moment_block) g[i] = 1;  // keeps the scale
    adamw_update(make_adamw_step({0.9, 0.999, 1e-8}, 0, 0, t), true, g, state, state);
  }
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += i % moment_block == 0 ? 0 : static_cast<double>(moments.second(i));
  EXPECT_NEAR(sum / static_cast<double>(count - 16), std::exp(-1.0), 0.01);
}

TEST_F(AdamWBlocks, RefusesWhatIsNotOfBlocks) {
  std::vector<float> g(600, 0.1f), p(600);
  TwinMoments moments(600);
  const AdamWState state = moments.state(p.data());
  const AdamWState within{p.data(), state.m + 1, state.v + 1};
  EXPECT_THROW(adamw_update(kBlockStep, true, std::span<const float>(g).first(100), within, within), Bug);
  const AdamWState unlike{p.data(), state.m, {moments.v.data(), moments.m_scales.data()}};
  EXPECT_THROW(adamw_update(kBlockStep, true, g, unlike, unlike), Bug) << "one array of scales for both";
  const AdamWState none{p.data(), {moments.m.data(), nullptr}, state.v};
  EXPECT_THROW(adamw_update(kBlockStep, true, g, none, none), Bug);
  std::vector<float> wide(600);
  EXPECT_THROW(adamw_update(kBlockStep, true, g, state, {p.data(), wide.data(), state.v}), Bug);
}

}  // namespace
}  // namespace so
