#include "plan/memory/activation_memory.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/sequence_slice.h"
#include "model/model_on_device.h"
#include "offload/memory/device_weights.h"
#include "offload/sequence_group.h"
#include "ranks/communicator.h"

namespace so {
namespace {

// These are the levels of what layers keep, from the most to the least: of a usual batch; and of one in tiles, for
// which attention is what takes longest to have again.
constexpr std::array usual_levels{Keep::all, Keep::light, Keep::no_gate_up, Keep::input, Keep::host};
constexpr std::array long_levels{Keep::light, Keep::no_gate_up, Keep::attention, Keep::input, Keep::host};
constexpr int levels = usual_levels.size() - 1;  // steps between them

// One layer of this many keeps its input, in the choices in which not all of them do.
constexpr std::array<std::int64_t, 3> spacings{2, 4, 8};

// The first `changed` layers keep `less`, the others `more`.
std::vector<Keep> keep_of(std::int64_t layers, std::int64_t changed, Keep more, Keep less) {
  std::vector<Keep> keep(static_cast<std::size_t>(layers), more);
  std::fill_n(keep.begin(), changed, less);
  return keep;
}

// Gradients that nobody wants, in the format that a run's have.
class DrySink final : public GradientSink {
 public:
  DrySink(const ParameterLayout& layout, DType dtype) : layout_(layout), dtype_(dtype) {}
  void require_gradients(int, Stream&) override {}
  Target gradient(int first, int count) override {
    if (!layout_.trains_any(first, count)) return {};
    // Addresses of a dry device are numbers only.
    return {layout_.view(reinterpret_cast<void*>(std::uintptr_t{1} << 43), dtype_, first, count), {}};
  }
  void gradients_ready(int, Stream&) override {}

 private:
  const ParameterLayout& layout_;
  const DType dtype_;
};

}  // namespace

struct ActivationSizer::Dry {
  Dry(const ParameterLayout& layout, const Backend& backend, int sequence)
      : ranks(make_dry_communicator(sequence)),
        device(make_dry_device(backend)),
        ops(make_ops(*device)),
        stream(device->create_stream("compute")),
        weights(*device, layout, DType::bf16) {}
  std::unique_ptr<Communicator> ranks;  // of a sequence
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Stream> stream;
  DeviceWeights weights;  // views only
};

ActivationSizer::ActivationSizer(const DecoderSpec& spec, const ParameterLayout& layout, const Backend& backend,
                                 const TrainingShape& shape)
    : spec_(spec), layout_(layout), shape_(shape), dry_(std::make_unique<Dry>(layout, backend, shape.sequence)) {}

ActivationSizer::~ActivationSizer() = default;

// The run's model, without anything behind it.
struct ActivationSizer::Run {
  Run(ActivationSizer& sizer, const DecoderSettings& settings)
      : shape(sizer.shape_),
        layout(sizer.layout_),
        dry(*sizer.dry_),
        // Rank 0 has the longest slice of a group. What its messages take is no activation, so any route does.
        group(*dry.ranks, shape.sequence, *dry.device, CollectiveRoute::nccl),
        model(*dry.device, *dry.ops, *dry.stream, sizer.spec_, layout, settings, model_shape(shape), &group),
        gradients(settings.formats.gradients) {
    model.make_arena(0);
  }

  // No batch has more documents than tokens.
  DeviceBatch batch_of(std::int64_t tokens, std::int64_t longest_document) {
    if (shape.sequence == 1) return model.upload().largest(tokens, tokens, longest_document);
    const std::int64_t all = filled(tokens, shape);
    return model.upload().largest(longest_slice(all, shape.sequence), all, longest_document, all);
  }
  void train(std::int64_t tokens, std::int64_t longest_document) {
    const DeviceBatch batch = batch_of(tokens, longest_document);
    DrySink sink(layout, gradients);
    model.decoder().forward_backward(*dry.stream, batch, dry.weights, sink, model.arena(), model.upload().losses(), 1);
  }

  const TrainingShape& shape;
  const ParameterLayout& layout;
  Dry& dry;
  SequenceGroup group;
  ModelOnDevice model;
  const DType gradients;
};

std::size_t ActivationSizer::bytes(const DecoderSettings& settings) {
  Run run(*this, settings);
  ModelOnDevice& model = run.model;
  if (shape_.micro_batch_tokens > 0) run.train(shape_.micro_batch_tokens, shape_.longest_document);
  if (shape_.evaluation_tokens > 0) {
    const DeviceBatch batch = run.batch_of(shape_.evaluation_tokens, shape_.longest_document);
    model.decoder().forward_loss(*dry_->stream, batch, dry_->weights, model.arena(), model.upload().losses());
  }
  if (shape_.sample_tokens > 0) {
    const Tensor logits(model.upload().losses().data(), DType::f32, {1, spec_.vocab});
    for (const std::int64_t tokens : {sample_batch_tokens(shape_), std::int64_t{1}}) {
      const DeviceBatch batch = model.upload().largest(tokens, 1, shape_.sample_tokens);
      model.cache().used = shape_.sample_tokens - tokens;  // the most keys there will be
      model.decoder().forward_logits(*dry_->stream, batch, dry_->weights, model.arena(), logits, &model.cache());
    }
  }
  return model.arena().high_water();
}

std::size_t ActivationSizer::bytes_of_batch(const DecoderSettings& settings, std::int64_t tokens,
                                            std::int64_t longest_document) {
  Run run(*this, settings);
  run.train(tokens, longest_document);
  return run.model.arena().high_water();
}

std::size_t ActivationSizer::host_bytes(const DecoderSettings& settings) const {
  return kept_host_bytes(spec_, settings.formats.activations, shape_, settings.keep);
}

std::size_t ActivationSizer::page_tables(const DecoderSettings& settings) const {
  return page_table_bytes(backend_of(*dry_->device), host_bytes(settings));
}

std::int64_t keep_choices(std::int64_t layers) { return levels * layers + 1; }

std::vector<Keep> keep_choice(std::int64_t layers, std::int64_t choice) {
  SO_CHECK(choice >= 0 && choice < keep_choices(layers), "choice {} for {} layers", choice, layers);
  const std::int64_t level = std::min<std::int64_t>(choice / layers, levels - 1);
  const auto at = static_cast<std::size_t>(level);
  return keep_of(layers, choice - level * layers, usual_levels[at], usual_levels[at + 1]);
}

std::int64_t keep_choices_on_device(std::int64_t layers) { return keep_choices(layers) - layers; }

std::vector<Keep> keep_every(std::int64_t layers, std::int64_t every, std::int64_t on_host) {
  std::vector<Keep> keep(static_cast<std::size_t>(layers), Keep::nothing);
  for (std::int64_t layer = 0; layer < layers; layer += every)
    keep[static_cast<std::size_t>(layer)] = layer < on_host * every ? Keep::host : Keep::input;
  return keep;
}

ActivationPlan choose_activations(ActivationSizer& sizer, DecoderSettings settings, ActivationBudget budget,
                                  std::span<const ActivationChoice> choices) {
  ActivationPlan least;
  for (const ActivationChoice& choice : choices) {
    settings.keep = choice.keep;
    settings.tile_rows = choice.tile_rows;
    const std::size_t bytes = sizer.bytes(settings);
    // The scratch for what the first layer drops may exceed what is freed, so the next choice can take more memory.
    if (bytes + sizer.page_tables(settings) <= budget.device && sizer.host_bytes(settings) <= budget.host)
      return {settings.keep, settings.tile_rows, bytes};
    if (least.keep.empty() || bytes < least.bytes) least = {settings.keep, settings.tile_rows, bytes};
  }
  return least;
}

namespace {

// The choices in which each layer keeps at least its input.
std::vector<ActivationChoice> choices_with_inputs(std::int64_t layers, const Backend& backend,
                                                  Toggle activation_checkpointing, bool in_tiles) {
  if (activation_checkpointing == Toggle::off) return {{keep_choice(layers, 0), 0}};
  const bool on = activation_checkpointing == Toggle::on;
  // Where the device's memory is the host's, inputs need not go there.
  const std::int64_t on_device = keep_choices_on_device(layers),
                     end = backend.own_memory ? keep_choices(layers) : on_device;
  std::vector<ActivationChoice> choices;
  // What is in tiles gives up gate and up first.
  for (std::int64_t keep = on ? on_device - 1 : 0; keep < (!in_tiles ? end : on ? on_device : layers + 1); ++keep)
    choices.push_back({keep_choice(layers, keep), 0});
  if (!in_tiles) return choices;
  for (std::size_t level = 0; level + 1 < long_levels.size(); ++level) {
    const Keep more = long_levels[level], less = long_levels[level + 1];
    if ((on && more < Keep::input) || (less == Keep::host && !backend.own_memory)) continue;
    for (std::int64_t changed = on && more == Keep::input ? 0 : 1; changed <= layers; ++changed)
      choices.push_back({keep_of(layers, changed, more, less), plan_tile_rows});
  }
  if (on && !backend.own_memory) choices.push_back({keep_choice(layers, on_device - 1), plan_tile_rows});
  return choices;
}

}  // namespace

std::vector<ActivationChoice> activation_choices(std::int64_t layers, const Backend& backend,
                                                 Toggle activation_checkpointing, std::int64_t tokens) {
  const bool in_tiles = tokens >= 2 * plan_tile_rows;
  std::vector<ActivationChoice> choices = choices_with_inputs(layers, backend, activation_checkpointing, in_tiles);
  if (activation_checkpointing == Toggle::off) return choices;
  std::int64_t before = 1;
  for (const std::int64_t every : spacings) {
    if (before >= layers) break;  // the first layer keeps its input, and no other one does, in the choice before
    before = every;
    const std::int64_t inputs = (layers + every - 1) / every;
    for (std::int64_t on_host = 0; on_host <= (backend.own_memory ? inputs : 0); ++on_host)
      choices.push_back({keep_every(layers, every, on_host), in_tiles ? plan_tile_rows : 0});
  }
  return choices;
}

std::size_t kept_host_bytes(const DecoderSpec& spec, DType activations, const TrainingShape& shape,
                            const std::vector<Keep>& keep) {
  return ActivationStore::host_bytes(kept_on_host(keep), layer_input_bytes(spec, activations, slice_tokens(shape)));
}

std::int64_t choose_loss_chunk(const Backend& backend, std::int64_t vocab) {
  const Backend::LossChunk& chunk = backend.loss_chunk;
  const std::int64_t rows = chunk.bytes / (chunk.element_bytes * vocab);
  return std::clamp(rows / chunk.tile * chunk.tile, chunk.least_rows, chunk.most_rows);
}

bool all_recomputed(const std::vector<Keep>& keep) {
  return !keep.empty() && std::all_of(keep.begin(), keep.end(), [](Keep k) { return k >= Keep::input; });
}

namespace {

const char* words_of(Keep keep) {
  switch (keep) {
    case Keep::all:
      return "all";
    case Keep::light:
      return "all but norms and activation functions";
    case Keep::no_gate_up:
      return "all but norms, activation functions and gate/up projections";
    case Keep::attention:
      return "layer inputs and attention's outputs only";
    case Keep::input:
      return "layer inputs only";
    case Keep::host:
      return "layer inputs only, in host memory";
    case Keep::nothing:
      return "nothing (run again from the last layer below that kept its input)";
  }
  return "";
}

}  // namespace

std::string describe(const std::vector<Keep>& keep) {
  if (keep.empty()) return words_of(Keep::all);
  std::string text;
  for (int level = static_cast<int>(Keep::nothing); level >= 0; --level) {
    const auto layers = std::count(keep.begin(), keep.end(), static_cast<Keep>(level));
    const char* kept = words_of(static_cast<Keep>(level));
    if (layers == static_cast<std::int64_t>(keep.size())) return kept;
    if (layers == 0) continue;
    text += fmt::format("{}{} layer{}: {}", text.empty() ? "" : "; ", layers, layers == 1 ? "" : "s", kept);
  }
  return text;
}

std::string describe(const std::vector<Keep>& keep, std::int64_t tile_rows) {
  return describe(keep) + (tile_rows > 0 ? fmt::format(", in tiles of {} tokens", tile_rows) : "");
}

}  // namespace so
