// Engines on several ranks, which are threads, and what they hold together.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "offload/counted_settings.h"
#include "offload/engine_rig.h"
#include "support/thread_ranks.h"

namespace so::test {

inline CountedSettings gathered_settings(int gathered, int device_units = 0) {
  CountedSettings settings;
  settings.counts.gathered_units = gathered;
  settings.counts.device_units = device_units;
  settings.placement.bucket_elements = 2048;
  settings.placement.spare_buckets = 3;
  settings.weight_decay = 0.1;
  settings.max_grad_norm = 3000;
  return settings;
}

// The gradient of a step: those of all ranks added up. Gradients are multiples of 2^-8, so the sums are exact.
inline Flat sum_of(const std::vector<Flat>& gradients) {
  Flat sum = gradients[0];
  for (std::size_t g = 1; g < gradients.size(); ++g)
    for (std::size_t p = 0; p < sum.size(); ++p)
      std::transform(sum[p].begin(), sum[p].end(), gradients[g][p].begin(), sum[p].begin(), std::plus<>());
  return sum;
}

// The values of a parameter in an array over the flat range.
inline std::vector<float> part_of(const ParameterLayout& layout, int p, const std::vector<float>& all) {
  return {all.begin() + layout.range(p).begin, all.begin() + layout.range(p).end};
}

// All of the flat range: every rank's slices put together. Nothing overlaps and nothing is missing.
inline std::vector<float> whole(OffloadEngine& engine, Communicator& ranks, StateArray array) {
  std::vector<double> values(static_cast<std::size_t>(engine.layout().elements())), times(values.size());
  engine.read_state(array, {0, engine.layout().elements()}, [&](std::int64_t begin, std::span<const float> part) {
    for (std::size_t i = 0; i < part.size(); ++i) {
      values[static_cast<std::size_t>(begin) + i] = part[i];
      times[static_cast<std::size_t>(begin) + i] = 1;
    }
  });
  ranks.all_reduce_sum(values);
  ranks.all_reduce_sum(times);
  EXPECT_EQ(times, std::vector<double>(times.size(), 1.0)) << "each element has one owner";
  return {values.begin(), values.end()};
}

// The state of all ranks, and this rank's weights. A collective; a barrier must follow before a rank's engine goes.
inline EngineBytes bytes_of(EngineRig& rig, Communicator& ranks) {
  return {whole(rig.engine(), ranks, StateArray::master), whole(rig.engine(), ranks, StateArray::first_moment),
          whole(rig.engine(), ranks, StateArray::second_moment), rig.weights()};
}

// Every rank has all weights, which are the masters rounded.
inline void expect_weights(const ParameterLayout& layout, const std::vector<std::byte>& weights, const Flat& masters,
                           DType dtype) {
  for (int p = 0; p < layout.count(); ++p) {
    const auto compare = [&]<class T>(const T* found) {
      std::vector<float> rounded;
      for (const float x : masters[static_cast<std::size_t>(p)]) rounded.push_back(static_cast<float>(T(x)));
      EXPECT_EQ(std::vector<float>(found + layout.range(p).begin, found + layout.range(p).end), rounded)
          << "weights of " << layout.parameter(p).name;
    };
    if (dtype == DType::bf16)
      compare(reinterpret_cast<const bf16*>(weights.data()));
    else
      compare(reinterpret_cast<const float*>(weights.data()));
  }
}

inline void expect_reference(const ParameterLayout& layout, const EngineBytes& found, const ReferenceLoop& reference,
                             DType weights) {
  for (int p = 0; p < layout.count(); ++p) {
    const auto at = static_cast<std::size_t>(p);
    EXPECT_EQ(part_of(layout, p, found.master), reference.master[at]) << "master of " << layout.parameter(p).name;
    EXPECT_EQ(part_of(layout, p, found.m), reference.m[at]) << "m of " << layout.parameter(p).name;
    EXPECT_EQ(part_of(layout, p, found.v), reference.v[at]) << "v of " << layout.parameter(p).name;
  }
  expect_weights(layout, found.weights, reference.master, weights);
}

// Three ranks call prepare(ranks), which gives their step to be run. Rank 2 gives up before its own, once all are
// prepared, since that is a collective, too. The steps of the others must end with that failure.
inline void expect_a_failure_ends_all(const std::function<std::function<void()>(Communicator&)>& prepare) {
  std::mutex mutex;
  std::vector<std::string> errors;
  std::atomic<int> prepared{0};
  run_ranks(3, [&](Communicator& ranks) {
    const std::function<void()> step = prepare(ranks);
    ++prepared;
    if (ranks.rank() == 2) {
      while (prepared < 3) std::this_thread::yield();
      ranks.abort("a device error");
      return;
    }
    try {
      step();
      ADD_FAILURE() << "a step without rank 2";
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      errors.emplace_back(error.what());
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(2, "rank 2 gave up: a device error"));
}

}  // namespace so::test
