// AdamW on a stream gives the bits of its contract on every device of this machine, for any cut into runs, and leaves
// what lies between the runs alone.
#include "optim/device_adamw.h"

#include <bit>
#include <random>

#include "optim/moment_twin.h"
#include "support/random_tensors.h"

namespace so::test {
namespace {

constexpr std::int64_t kCount = 70'003;  // not a multiple of anything the kernels like

struct Case {
  DeviceKind device;
  DType gradient, moments, weight;
};

class DeviceAdamWTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().device == DeviceKind::cuda && !find_cuda().usable) GTEST_SKIP() << find_cuda().reason;
    if (GetParam().device == DeviceKind::cuda) cuda_ = make_cuda_device(0);
    stream_ = (cuda_ ? *cuda_ : cpu_.device()).create_stream("adamw");
  }

  DeviceRig cpu_;
  std::unique_ptr<Device> cuda_;
  std::unique_ptr<Stream> stream_;
};

std::vector<double> spread(unsigned seed, double low, double high, bool positive) {
  std::mt19937_64 random(seed);
  std::vector<double> values = random_values(kCount, seed);
  for (double& value : values) {
    const double exponent = low + (high - low) * std::ldexp(static_cast<double>(random() >> 11), -53);
    value = (positive ? std::abs(value) : value) * std::pow(10.0, exponent);
  }
  return values;
}

Moments moments_at(const TestTensor& array) {
  const Tensor tensor = array.tensor();
  return tensor.dtype() == DType::bf16 ? Moments(tensor.as<bf16>()) : Moments(tensor.as<float>());
}

TEST_P(DeviceAdamWTest, BitsOfTheContract) {
  const auto [kind, gradient_type, moment_type, weight_type] = GetParam();
  std::vector<double> g = spread(1, -12, 4, false), p = spread(2, -4, 1, false), m = spread(3, -12, 2, false),
                      v = spread(4, -40, 3, true);  // subnormal ones too
  // Runs as parameters give them: short and long, at odd places, with gaps, some without decay; more than one launch of
  // the CUDA kernel takes.
  std::vector<AdamWRun> runs = {{0, 1, true}, {1, 3, false}, {5, 13, true}, {16, 24, false}, {24, 4119, true}};
  for (std::int64_t at = 5000; at < 12'000; at += 37) runs.push_back({at, at + 20 + at % 17, at % 2 == 0});
  runs.push_back({13'001, 13'001, true});
  runs.push_back({13'003, kCount - 1, true});

  const TestTensor gradient(*stream_, gradient_type, {kCount}, g), master(*stream_, DType::f32, {kCount}, p),
      first(*stream_, moment_type, {kCount}, m), second(*stream_, moment_type, {kCount}, v),
      weights(*stream_, weight_type, {kCount}, std::vector<double>(kCount, 0.5));
  const std::vector<double> g0 = gradient.values(*stream_), p0 = master.values(*stream_), m0 = first.values(*stream_),
                            v0 = second.values(*stream_);
  const AdamWStep step = make_adamw_step({}, 1e-3, 0.1, 7, 0.37f);
  const auto adamw = make_device_adamw(stream_->device());
  adamw->update(*stream_, step, runs, gradient, {master.tensor().as<float>(), moments_at(first), moments_at(second)},
                weights);
  const std::vector<double> p1 = master.values(*stream_), m1 = first.values(*stream_), v1 = second.values(*stream_),
                            w1 = weights.values(*stream_);
  const auto bits = [](double x) { return std::bit_cast<std::uint32_t>(static_cast<float>(x)); };
  std::size_t at = 0, updated = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(kCount); ++i) {
    while (at < runs.size() && static_cast<std::int64_t>(i) >= runs[at].end) ++at;
    const bool inside = at < runs.size() && static_cast<std::int64_t>(i) >= runs[at].begin;
    TwinElement expected{static_cast<float>(p0[i]), static_cast<float>(m0[i]), static_cast<float>(v0[i])};
    if (inside) expected = adamw_twin(step, runs[at].decay, static_cast<float>(g0[i]), expected), ++updated;
    if (moment_type == DType::bf16) {
      expected.m = static_cast<float>(bf16(expected.m));
      expected.v = static_cast<float>(bf16(expected.v));
    }
    ASSERT_EQ(bits(p1[i]), bits(expected.p)) << i;
    ASSERT_EQ(bits(m1[i]), bits(expected.m)) << i;
    ASSERT_EQ(bits(v1[i]), bits(expected.v)) << i;
    const float weight = !inside                      ? 0.5f
                         : weight_type == DType::bf16 ? static_cast<float>(bf16(expected.p))
                                                      : expected.p;
    ASSERT_EQ(bits(w1[i]), bits(weight)) << i;
  }
  EXPECT_GT(updated, 60'000u);

  // Without memory for weights, the state alone, with the same bits.
  const TestTensor master2(*stream_, DType::f32, {kCount}, p), first2(*stream_, moment_type, {kCount}, m),
      second2(*stream_, moment_type, {kCount}, v);
  adamw->update(*stream_, step, runs, gradient, {master2.tensor().as<float>(), moments_at(first2), moments_at(second2)},
                Tensor(nullptr, weight_type, {kCount}));
  EXPECT_EQ(master2.values(*stream_), p1);
  EXPECT_EQ(first2.values(*stream_), m1);
  EXPECT_EQ(second2.values(*stream_), v1);
}

// The same with moments in 8 bits, whose blocks count from a run's beginning.
class DeviceAdamWBlocksTest : public DeviceAdamWTest {};

TEST_P(DeviceAdamWBlocksTest, BitsOfTheContract) {
  const auto [kind, gradient_type, moment_type, weight_type] = GetParam();
  // Short and long, at odd places and at even ones, more than one launch takes.
  std::vector<AdamWRun> runs = {{0, 1, true}, {1, 3, false}, {5, 13, true}, {16, 24, false}, {24, 4119, true}};
  for (std::int64_t at = 5000; at < 32'000; at += 277) runs.push_back({at, at + 200 + at % 77, at % 2 == 0});
  runs.push_back({33'000, 33'000 + 40 * moment_block, true});
  runs.push_back({50'003, kCount - 1, true});
  std::int64_t blocks = 0;
  for (AdamWRun& run : runs) {
    run.first_block = blocks;
    blocks += moment_blocks(run.end - run.begin);
  }
  const std::vector<double> g = spread(1, -12, 4, false), p = spread(2, -4, 1, false), m = spread(3, -12, 2, false),
                            v = spread(4, -40, 3, true);
  const AdamWStep step = make_adamw_step({}, 1e-3, 0.1, 7, 0.37f);
  const TestTensor gradient(*stream_, gradient_type, {kCount}, g), master(*stream_, DType::f32, {kCount}, p),
      weights(*stream_, weight_type, {kCount}, std::vector<double>(kCount, 0.5));
  const std::vector<double> g0 = gradient.values(*stream_), p0 = master.values(*stream_);

  std::vector<double> m_codes(kCount), v_codes(kCount), m_scales(static_cast<std::size_t>(blocks)), v_scales(m_scales),
      p1 = p0, w1(kCount, 0.5);
  std::vector<double> new_m_codes(kCount), new_v_codes(kCount), new_m_scales(m_scales), new_v_scales(v_scales);
  for (const AdamWRun& run : runs) {
    std::vector<float> old_m, old_v, new_m, new_v;
    for (std::int64_t i = run.begin; i < run.end; ++i) {
      old_m.push_back(static_cast<float>(m[static_cast<std::size_t>(i)]));
      old_v.push_back(static_cast<float>(v[static_cast<std::size_t>(i)]));
    }
    const TwinMoments old = twin_moments(old_m, old_v, 3);
    for (std::size_t i = 0; i < old_m.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(run.begin) + i;
      const TwinElement x = adamw_twin(step, run.decay, static_cast<float>(g0[at]),
                                       {static_cast<float>(p0[at]), old.first(i), old.second(i)});
      p1[at] = x.p;
      w1[at] = weight_type == DType::bf16 ? static_cast<float>(bf16(x.p)) : x.p;
      new_m.push_back(x.m);
      new_v.push_back(x.v);
    }
    const TwinMoments updated = twin_moments(new_m, new_v, step.dither);
    const auto begin = static_cast<std::ptrdiff_t>(run.begin), block = static_cast<std::ptrdiff_t>(run.first_block);
    std::copy(old.m.begin(), old.m.end(), m_codes.begin() + begin);
    std::copy(old.v.begin(), old.v.end(), v_codes.begin() + begin);
    std::copy(old.m_scales.begin(), old.m_scales.end(), m_scales.begin() + block);
    std::copy(old.v_scales.begin(), old.v_scales.end(), v_scales.begin() + block);
    std::copy(updated.m.begin(), updated.m.end(), new_m_codes.begin() + begin);
    std::copy(updated.v.begin(), updated.v.end(), new_v_codes.begin() + begin);
    std::copy(updated.m_scales.begin(), updated.m_scales.end(), new_m_scales.begin() + block);
    std::copy(updated.v_scales.begin(), updated.v_scales.end(), new_v_scales.begin() + block);
  }
  const TestTensor first(*stream_, DType::u8, {kCount}, m_codes), second(*stream_, DType::u8, {kCount}, v_codes),
      first_scales(*stream_, DType::f32, {blocks}, m_scales), second_scales(*stream_, DType::f32, {blocks}, v_scales);
  const AdamWState state{master.tensor().as<float>(),
                         {first.tensor().as<std::uint8_t>(), first_scales.tensor().as<float>()},
                         {second.tensor().as<std::uint8_t>(), second_scales.tensor().as<float>()}};
  make_device_adamw(stream_->device())->update(*stream_, step, runs, gradient, state, weights);
  EXPECT_EQ(master.values(*stream_), p1);
  EXPECT_EQ(weights.values(*stream_), w1);
  EXPECT_EQ(first_scales.values(*stream_), new_m_scales);
  EXPECT_EQ(second_scales.values(*stream_), new_v_scales);
  EXPECT_EQ(first.values(*stream_), new_m_codes);
  EXPECT_EQ(second.values(*stream_), new_v_codes);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda})
    for (const DType gradient : {DType::f32, DType::bf16})
      for (const DType moments : {DType::f32, DType::bf16})
        for (const DType weight : {DType::f32, DType::bf16}) cases.push_back({device, gradient, moments, weight});
  return cases;
}
std::vector<Case> cases_of_blocks() {
  std::vector<Case> cases;
  for (Case c : all_cases())
    if (c.moments == DType::f32) {
      c.moments = DType::u8;
      cases.push_back(c);
    }
  return cases;
}
std::string name_of_case(const testing::TestParamInfo<Case>& i) {
  return std::string(i.param.device == DeviceKind::cpu ? "cpu_" : "cuda_") + std::string(name_of(i.param.gradient)) +
         "_" + std::string(name_of(i.param.moments)) + "_" + std::string(name_of(i.param.weight));
}
INSTANTIATE_TEST_SUITE_P(Optim, DeviceAdamWTest, testing::ValuesIn(all_cases()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Optim, DeviceAdamWBlocksTest, testing::ValuesIn(cases_of_blocks()), name_of_case);

}  // namespace
}  // namespace so::test
