// Runs an engine in some manner, with updates chosen at random, and holds it to the plain loop.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <utility>

#include "offload/counted_settings.h"
#include "offload/engine_rig.h"
#include "offload/random_policy.h"

namespace so::test {

constexpr int plain_loop_steps = 12;

inline Flat plain_gradient(const ParameterLayout& layout, int step) {
  Flat gradient = synthetic_gradients(layout, static_cast<unsigned>(step), step % 3 == 0 ? 1.0f : 0x1p-6f);
  // Nobody looks at a frozen parameter's, which here is no number.
  for (int p = 0; p < layout.count(); ++p)
    if (!layout.parameter(p).trained)
      gradient[static_cast<std::size_t>(p)][0] = std::numeric_limits<float>::quiet_NaN();
  return gradient;
}

struct PlainManner {
  std::int64_t bucket_elements = 2048;
  int device_units = 0;
  std::int64_t spare_buckets = 3;
  Schedule schedule = Schedule::overlapped;
  bool transient_weights = false, transient_gradients = false;
  int streamed_units = 0;
  bool over_link = false;
  int resume_at = -1;
  DType moments = DType::f32;
};

inline CountedSettings plain_settings(DType compute, const PlainManner& manner) {
  CountedSettings settings;
  settings.formats = model_formats(compute);
  settings.formats.moments = manner.moments;
  settings.placement.bucket_elements = manner.bucket_elements;
  settings.counts.device_units = manner.device_units;
  settings.placement.spare_buckets = manner.spare_buckets;
  settings.placement.schedule = manner.schedule;
  settings.counts.cast_weights = manner.transient_weights;
  settings.counts.streamed_units = manner.streamed_units;
  settings.placement.over_link = manner.over_link;
  if (manner.transient_gradients) settings.counts.move_gradients = true;
  settings.weight_decay = 0.1;
  settings.max_grad_norm = 100;  // a third of the steps is clipped
  return settings;
}

// Every weight is one that the format holds, as in a file.
inline Flat plain_initial(DType compute) {
  Flat masters = synthetic_gradients(layered(), 1, 0.125f);
  if (compute == DType::bf16)
    for (auto& values : masters)
      for (float& x : values) x = static_cast<float>(bf16(x));
  return masters;
}

inline void expect_plain_loop(const ParameterLayout& layout, DType compute, const PlainManner& manner, unsigned seed) {
  const CountedSettings settings = plain_settings(compute, manner);
  const auto make = [&](unsigned s) {
    return std::make_unique<EngineRig>(layout, settings, 2, std::make_unique<RandomPolicy>(s));
  };
  ReferenceLoop reference(layout, settings, plain_initial(compute));
  auto rig = make(seed);
  rig->load(plain_initial(compute));
  int clipped = 0;
  for (int step = 0; step < plain_loop_steps; ++step) {
    if (step == manner.resume_at) {
      auto other = make(seed + 1);
      rig->stream().synchronize();
      other->load(rig->bytes());
      rig = std::move(other);
    }
    const Verdict verdict = rig->step(plain_gradient(layout, step), 1e-2, step + 1);
    ASSERT_TRUE(verdict.finite) << step;
    EXPECT_EQ(verdict.clip, reference.step(plain_gradient(layout, step), 1e-2, step + 1)) << step;
    clipped += verdict.clip != 1.0f ? 1 : 0;
  }
  EXPECT_GT(clipped, 1);
  EXPECT_LT(clipped, plain_loop_steps);
  EXPECT_TRUE(rig->equals(reference));
}

}  // namespace so::test
