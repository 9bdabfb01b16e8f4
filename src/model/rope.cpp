#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace so {

namespace {

// The dimension whose angle turns `turns` times within the original positions.
double yarn_dimension(const RopeSpec& rope, double turns) {
  const auto original = static_cast<double>(rope.original_positions);
  return static_cast<double>(rope.rotary_dim) * std::log(original / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

// How much of the unscaled frequency each pair keeps.
class YarnRamp {
 public:
  explicit YarnRamp(const RopeSpec& rope) {
    double low = yarn_dimension(rope, rope.beta_fast), high = yarn_dimension(rope, rope.beta_slow);
    if (rope.truncate) low = std::floor(low), high = std::ceil(high);
    low_ = static_cast<float>(std::max(low, 0.0));
    const double last = std::min(high, static_cast<double>(rope.rotary_dim - 1));
    width_ = static_cast<float>(last == std::max(low, 0.0) ? 0.001 : last - std::max(low, 0.0));
  }
  float kept(std::int64_t i) const { return 1 - std::clamp((static_cast<float>(i) - low_) / width_, 0.0f, 1.0f); }

 private:
  float low_, width_;
};

// The base for sequences of `positions` positions; the model's own within original_positions.
double dynamic_theta(const RopeSpec& rope, std::int64_t positions) {
  const auto dim = static_cast<double>(rope.rotary_dim);
  const double share =
      static_cast<double>(std::max(positions, rope.original_positions)) / static_cast<double>(rope.original_positions);
  return rope.theta * std::pow(rope.factor * share - (rope.factor - 1), dim / (dim - 2));
}

// In fp32, as transformers computes it.
float query_scale(const RopeSpec& rope, std::int64_t position) {
  return 1 +
         static_cast<float>(rope.query_growth) * std::log(1 + static_cast<float>(position / rope.original_positions));
}

}  // namespace

std::vector<float> rope_frequencies(const RopeSpec& rope, std::int64_t tokens) {
  const std::int64_t half = rope.rotary_dim / 2;
  const double theta = rope.scaling == RopeScaling::dynamic ? dynamic_theta(rope, tokens) : rope.theta;
  const std::vector<double>& divisors = tokens > rope.original_positions ? rope.long_factor : rope.short_factor;
  std::vector<float> frequencies(static_cast<std::size_t>(half), 0.0f);
  for (std::int64_t i = 0; i < half - rope.still_pairs; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.rotary_dim);
    const float wavelength = std::pow(static_cast<float>(theta), exponent);
    float frequency = 1.0f / wavelength;
    if (rope.scaling == RopeScaling::longrope) {
      frequency = 1.0f / (static_cast<float>(divisors.at(static_cast<std::size_t>(i))) * wavelength);
    } else if (rope.scaling == RopeScaling::linear) {
      frequency /= static_cast<float>(rope.factor);
    } else if (rope.scaling == RopeScaling::yarn) {
      const float kept = YarnRamp(rope).kept(i), stretched = 1.0f / (static_cast<float>(rope.factor) * wavelength);
      frequency = stretched * (1 - kept) + frequency * kept;
    } else if (rope.scaling == RopeScaling::llama3) {
      const auto original = static_cast<double>(rope.original_positions);
      const float turn = static_cast<float>(2 * std::numbers::pi) / frequency;
      if (turn > original / rope.low_freq_factor) {
        frequency = frequency / static_cast<float>(rope.factor);
      } else if (turn >= original / rope.high_freq_factor) {
        const float smooth = (static_cast<float>(original) / turn - static_cast<float>(rope.low_freq_factor)) /
                             static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
        frequency = (1 - smooth) * frequency / static_cast<float>(rope.factor) + smooth * frequency;
      }
    }
    frequencies[static_cast<std::size_t>(i)] = frequency;
  }
  return frequencies;
}

std::vector<float> rope_table(const RopeSpec& rope, std::int64_t positions, RotatedHeads heads) {
  const auto frequencies = rope_frequencies(rope, positions);
  const std::size_t half = frequencies.size();
  std::vector<float> table(static_cast<std::size_t>(positions) * 2 * half);
  for (std::size_t p = 0; p < static_cast<std::size_t>(positions); ++p) {
    const float scale = heads == RotatedHeads::queries ? query_scale(rope, static_cast<std::int64_t>(p)) : 1.0f;
    const float factor = static_cast<float>(rope.attention_factor) * scale;
    for (std::size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * frequencies[i];
      table[(2 * p) * half + i] = static_cast<float>(std::cos(static_cast<double>(angle))) * factor;
      table[(2 * p + 1) * half + i] = static_cast<float>(std::sin(static_cast<double>(angle))) * factor;
    }
  }
  return table;
}

std::int64_t rope_width(const DecoderSpec& spec) {
  const std::int64_t local = spec.local_rope ? spec.local_rope->rotary_dim : 0;
  return spec.rope.rotary_dim * (queries_have_own_table(spec) ? 2 : 1) + local;
}

Tensor rope_table_of(const DecoderSpec& spec, Tensor all, LayerRotation rotation, RotatedHeads heads) {
  SO_CHECK(rotation != LayerRotation::none, "a layer that does not rotate");
  const std::int64_t rows = all.size() / rope_width(spec), local = spec.local_rope ? spec.local_rope->rotary_dim : 0;
  if (rotation == LayerRotation::local)
    return all.rows(rows * spec.rope.rotary_dim, rows * local).reshape({rows, 2, local / 2});
  const bool own = heads == RotatedHeads::queries && queries_have_own_table(spec);
  return all.rows(own ? rows * (spec.rope.rotary_dim + local) : 0, rows * spec.rope.rotary_dim)
      .reshape({rows, 2, spec.rope.rotary_dim / 2});
}

RopeRows::RopeRows(const DecoderSpec& spec, std::int64_t positions) : count_(positions) {
  for (const RopeSpec* rope : {&spec.rope, spec.local_rope ? &*spec.local_rope : nullptr})
    if (rope != nullptr && rope->scaling == RopeScaling::longrope && positions > rope->original_positions) {
      SO_CHECK(shorter_ == 0 || shorter_ == rope->original_positions, "two rotations of different original positions");
      shorter_ = rope->original_positions;
    }
  count_ += shorter_;
}

std::vector<float> rope_table(const DecoderSpec& spec, std::int64_t positions) {
  std::vector<float> table;
  const std::int64_t shorter = RopeRows(spec, positions).first(positions);
  const auto add = [&](const RopeSpec& rope, RotatedHeads heads) {
    for (const std::int64_t tokens : {shorter, positions}) {
      const std::vector<float> rows = rope_table(rope, tokens, heads);
      table.insert(table.end(), rows.begin(), rows.end());
    }
  };
  add(spec.rope, RotatedHeads::keys);
  if (spec.local_rope) add(*spec.local_rope, RotatedHeads::keys);
  if (queries_have_own_table(spec)) add(spec.rope, RotatedHeads::queries);
  return table;
}

std::size_t rope_table_bytes(const DecoderSpec& spec, std::int64_t positions) {
  return static_cast<std::size_t>(rope_width(spec) * RopeRows(spec, positions).count()) * sizeof(float);
}

}  // namespace so
