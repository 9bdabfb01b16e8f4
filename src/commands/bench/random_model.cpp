#include "commands/bench/random_model.h"

#include <algorithm>
#include <vector>

#include "base/normal_draw.h"
#include "data/example.h"
#include "model/initialize.h"
#include "model/random_weights.h"

namespace so {
namespace {

constexpr std::uint64_t weight_seed = 1;

// Has mean 0 and deviation 1: it is the sum of four uniform numbers of 16 bits, from one draw, without a logarithm.
float nearly_normal(std::uint64_t counter) {
  const std::uint64_t draw = mix_counter(weight_seed ^ mix_counter(counter));
  const auto sum = static_cast<float>((draw & 0xffff) + (draw >> 16 & 0xffff) + (draw >> 32 & 0xffff) + (draw >> 48));
  constexpr float mean = 2 * 65535.0f, deviation = 37837.2f;  // 65536 / sqrt(3)
  return (sum - mean) / deviation;
}

}  // namespace

void randomize(OffloadEngine& engine, const DecoderSpec& spec, ThreadPool& pool, Stream& stream) {
  const ParameterLayout& layout = engine.layout();
  for (int p = 0; p < layout.count(); ++p) {
    const Parameter& parameter = layout.parameter(p);
    const Range range = layout.range(p);
    if (!drawn(parameter)) {
      const std::vector<float> values = undrawn_values(spec, parameter);
      engine.write_state(StateArray::master, range, [&](std::int64_t begin, std::span<float> to) {
        std::copy_n(values.begin() + (begin - range.begin), to.size(), to.begin());
      });
      continue;
    }
    const auto scale = static_cast<float>(spec.initializer_range);
    engine.write_state(StateArray::master, range, [&](std::int64_t first, std::span<float> to) {
      pool.parallel_for(std::ssize(to), 1 << 15, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          to[static_cast<std::size_t>(i)] = scale * nearly_normal(static_cast<std::uint64_t>(first + i));
      });
    });
  }
  engine.upload_weights(stream);
}

MicroBatch random_batch(const DecoderSpec& spec, std::int64_t documents, std::int64_t length, std::uint64_t seed) {
  MicroBatch batch;
  batch.tokens = batch.padded_tokens = documents * length;
  batch.rows = documents;
  batch.trained_tokens = documents * (length - 1);
  batch.cu_seqlens.push_back(0);
  for (std::int64_t d = 0; d < documents; ++d) {
    for (std::int64_t i = 0; i < length; ++i) {
      const std::uint64_t draw = mix_counter(seed ^ mix_counter(static_cast<std::uint64_t>(d * length + i)));
      batch.ids.push_back(static_cast<std::int32_t>(draw % static_cast<std::uint64_t>(spec.vocab)));
      batch.positions.push_back(static_cast<std::int32_t>(i));
    }
    batch.cu_seqlens.push_back(static_cast<std::int32_t>((d + 1) * length));
  }
  batch.targets.assign(batch.ids.begin() + 1, batch.ids.end());
  batch.targets.push_back(kIgnored);
  for (std::int64_t d = 1; d < documents; ++d) batch.targets[static_cast<std::size_t>(d * length - 1)] = kIgnored;
  return batch;
}

}  // namespace so
