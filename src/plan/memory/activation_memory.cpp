#include "plan/memory/activation_memory.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "model/model_on_device.h"
#include "offload/memory/device_weights.h"

namespace so {
namespace {

constexpr int levels = 4;  // steps from Keep::all to Keep::host

// Gradients that nobody wants.
class DrySink final : public GradientSink {
 public:
  explicit DrySink(const ParameterLayout& layout) : layout_(layout) {}
  void require_gradients(int, Stream&) override {}
  Target gradient(int first, int count) override {
    if (!layout_.trains_any(first, count)) return {};
    // Addresses of a dry device are numbers only.
    return {layout_.view(reinterpret_cast<void*>(std::uintptr_t{1} << 43), DType::f32, first, count), {}};
  }
  void gradients_ready(int, Stream&) override {}

 private:
  const ParameterLayout& layout_;
};

}  // namespace

struct ActivationSizer::Dry {
  Dry(const ParameterLayout& layout, const Backend& backend)
      : device(make_dry_device(backend)),
        ops(make_ops(*device)),
        stream(device->create_stream("compute")),
        weights(*device, layout, DType::bf16) {}
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Stream> stream;
  DeviceWeights weights;  // views only
};

ActivationSizer::ActivationSizer(const DecoderSpec& spec, const ParameterLayout& layout, const Backend& backend,
                                 const TrainingShape& shape)
    : spec_(spec), layout_(layout), shape_(shape), dry_(std::make_unique<Dry>(layout, backend)) {}

ActivationSizer::~ActivationSizer() = default;

std::size_t ActivationSizer::bytes(const DecoderSettings& settings) {
  ModelOnDevice model(*dry_->device, *dry_->ops, *dry_->stream, spec_, layout_, settings, model_shape(shape_));
  model.make_arena(0);
  // No batch has more documents than tokens.
  const auto batch_of = [&](std::int64_t tokens) {
    return model.upload().largest(tokens, tokens, shape_.longest_document);
  };
  DrySink sink(layout_);
  if (shape_.micro_batch_tokens > 0) {
    const DeviceBatch batch = batch_of(shape_.micro_batch_tokens);
    model.decoder().forward_backward(*dry_->stream, batch, dry_->weights, sink, model.arena(), model.upload().losses(),
                                     1);
  }
  if (shape_.evaluation_tokens > 0) {
    const DeviceBatch batch = batch_of(shape_.evaluation_tokens);
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

std::int64_t keep_choices(std::int64_t layers) { return levels * layers + 1; }

std::vector<Keep> keep_choice(std::int64_t layers, std::int64_t choice) {
  SO_CHECK(choice >= 0 && choice < keep_choices(layers), "choice {} for {} layers", choice, layers);
  const std::int64_t level = std::min<std::int64_t>(choice / layers, levels - 1);
  std::vector<Keep> keep(static_cast<std::size_t>(layers), static_cast<Keep>(level));
  std::fill_n(keep.begin(), choice - level * layers, static_cast<Keep>(level + 1));
  return keep;
}

std::int64_t keep_choices_on_device(std::int64_t layers) { return keep_choices(layers) - layers; }

ActivationPlan choose_activations(ActivationSizer& sizer, const DecoderSpec& spec, DecoderSettings settings,
                                  std::size_t budget, std::span<const std::int64_t> choices) {
  ActivationPlan least;
  for (const std::int64_t choice : choices) {
    settings.keep = keep_choice(spec.layers, choice);
    const std::size_t bytes = sizer.bytes(settings);
    // The scratch for what the first layer drops may exceed what is freed, so the next choice can take more memory.
    if (bytes <= budget) return {settings.keep, bytes};
    if (least.keep.empty() || bytes < least.bytes) least = {settings.keep, bytes};
  }
  return least;
}

std::vector<std::int64_t> allowed_keep_choices(std::int64_t layers, const Backend& backend,
                                               Toggle activation_checkpointing) {
  if (activation_checkpointing == Toggle::off) return {0};
  const std::int64_t on_device = keep_choices_on_device(layers);
  // Where the device's memory is the host's, inputs need not go there.
  const std::int64_t end = backend.own_memory ? keep_choices(layers) : on_device,
                     first = activation_checkpointing == Toggle::on ? on_device - 1 : 0;
  std::vector<std::int64_t> choices(static_cast<std::size_t>(end - first));
  std::iota(choices.begin(), choices.end(), first);
  return choices;
}

std::size_t kept_host_bytes(const DecoderSpec& spec, DType activations, const TrainingShape& shape,
                            const std::vector<Keep>& keep) {
  return ActivationStore::host_bytes(kept_on_host(keep),
                                     layer_input_bytes(spec, activations, shape.micro_batch_tokens));
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
    case Keep::input:
      return "layer inputs only";
    case Keep::host:
      return "layer inputs only, in host memory";
  }
  return "";
}

}  // namespace

std::string describe(const std::vector<Keep>& keep) {
  if (keep.empty()) return words_of(Keep::all);
  std::string text;
  for (int level = levels; level >= 0; --level) {
    const auto layers = std::count(keep.begin(), keep.end(), static_cast<Keep>(level));
    const char* kept = words_of(static_cast<Keep>(level));
    if (layers == static_cast<std::int64_t>(keep.size())) return kept;
    if (layers == 0) continue;
    text += fmt::format("{}{} layer{}: {}", text.empty() ? "" : "; ", layers, layers == 1 ? "" : "s", kept);
  }
  return text;
}

}  // namespace so
