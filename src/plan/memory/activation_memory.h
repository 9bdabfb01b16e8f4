// How much memory activations take, and what each layer keeps so that they fit. Found by running the real decoder on a
// dry device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/backend.h"
#include "model/decoder.h"
#include "options/choices.h"
#include "plan/memory/training_shape.h"

namespace so {

// Sizes on a device of `kind`. A size costs a fraction of a millisecond to find.
class ActivationSizer {
 public:
  ActivationSizer(const DecoderSpec& spec, const ParameterLayout& layout, const Backend& backend,
                  const TrainingShape& shape);
  ~ActivationSizer();

  // The high-water mark of a training step, an evaluation or a sample, whichever is most.
  std::size_t bytes(const DecoderSettings& settings);

 private:
  struct Dry;
  const DecoderSpec& spec_;
  const ParameterLayout& layout_;
  const TrainingShape shape_;
  std::unique_ptr<Dry> dry_;
};

// Choices of what the layers keep, in order of what they cost, from all of all layers (0) to the inputs only, at last
// in host memory (keep_choices() - 1): first the layers drop, one after another and the first first, what is cheapest
// to have again for its size (Keep::light), then the next.
std::int64_t keep_choices(std::int64_t layers);
std::int64_t keep_choices_on_device(std::int64_t layers);  // the first of them, up to where all keep their inputs there
std::vector<Keep> keep_choice(std::int64_t layers, std::int64_t choice);

// The choices of what layers may keep, by number, cheapest first.
std::vector<std::int64_t> allowed_keep_choices(std::int64_t layers, const Backend& backend,
                                               Toggle activation_checkpointing);
// Host memory of what is kept there.
std::size_t kept_host_bytes(const DecoderSpec& spec, DType activations, const TrainingShape& shape,
                            const std::vector<Keep>& keep);

struct ActivationPlan {
  std::vector<Keep> keep;
  std::size_t bytes = 0;
};
// The first of `choices` that takes at most `budget` bytes of the device, the rest of `settings` as given; if
// none does, the one that takes the least.
ActivationPlan choose_activations(ActivationSizer& sizer, const DecoderSpec& spec, DecoderSettings settings,
                                  std::size_t budget, std::span<const std::int64_t> choices);

// Whether every layer keeps its input alone, wherever: what others call activation checkpointing. False of no layers.
bool all_recomputed(const std::vector<Keep>& keep);

// Rows of logits that are worth having at a time.
std::int64_t choose_loss_chunk(const Backend& backend, std::int64_t vocab);

// For people: "all", or "12 layers: layer inputs only; 28 layers: all".
std::string describe(const std::vector<Keep>& keep);

}  // namespace so
