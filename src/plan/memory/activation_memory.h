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
#include "model/decoder/decoder.h"
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
  // That of a training step's pass over a smaller batch with these tokens and this longest document, in the same run:
  // never more.
  std::size_t bytes_of_batch(const DecoderSettings& settings, std::int64_t tokens, std::int64_t longest_document);
  // Beside them, of the device's own memory: tables of what layers keep on the host.
  std::size_t page_tables(const DecoderSettings& settings) const;
  // Returns the host memory of what layers keep there.
  std::size_t host_bytes(const DecoderSettings& settings) const;

 private:
  struct Dry;
  struct Run;
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

// Every `every`-th layer, from the first on, keeps its input, the first `on_host` of them on the host; the layers
// between keep nothing.
std::vector<Keep> keep_every(std::int64_t layers, std::int64_t every, std::int64_t on_host);

// One choice of how activations are made to fit.
struct ActivationChoice {
  std::vector<Keep> keep;
  std::int64_t tile_rows = 0;  // DecoderSettings::tile_rows
  bool operator==(const ActivationChoice&) const = default;
};
// The choices for micro-batches of `tokens`, cheapest first: keep_choice()'s. Where there are many tokens, what a layer
// computes takes more memory than layers' inputs, and attention more time than all else. Then layers that do not
// keep gate and up are in tiles, which cost a hundredth of their products, and give up attention's outputs last of all
// but their inputs. At the end are keep_every() second, fourth and eighth layer: those between run forward twice.
std::vector<ActivationChoice> activation_choices(std::int64_t layers, const Backend& backend,
                                                 Toggle activation_checkpointing, std::int64_t tokens);
// Tokens of a tile: enough for products to run at their full rate.
inline constexpr std::int64_t plan_tile_rows = 16384;
// Host memory of what is kept there, which is pinned.
std::size_t kept_host_bytes(const DecoderSpec& spec, DType activations, const TrainingShape& shape,
                            const std::vector<Keep>& keep);

// The memory that activations may take. The device's share includes page tables.
struct ActivationBudget {
  std::size_t device = 0, host = 0;
};

struct ActivationPlan {
  std::vector<Keep> keep;
  std::int64_t tile_rows = 0;
  std::size_t bytes = 0;
};
// The first of `choices` that takes no more than `budget`, the rest of `settings` as given; if none does, the one that
// takes the least of the device.
ActivationPlan choose_activations(ActivationSizer& sizer, DecoderSettings settings, ActivationBudget budget,
                                  std::span<const ActivationChoice> choices);

// Whether no layer keeps more than its input, wherever: what others call activation checkpointing. False of no layers.
bool all_recomputed(const std::vector<Keep>& keep);

// Rows of logits that are worth having at a time.
std::int64_t choose_loss_chunk(const Backend& backend, std::int64_t vocab);

// For people: "all", or "12 layers: layer inputs only; 28 layers: all".
std::string describe(const std::vector<Keep>& keep);
// With the tiles, where there are any: "layer inputs only, in tiles of 16384 tokens".
std::string describe(const std::vector<Keep>& keep, std::int64_t tile_rows);

}  // namespace so
