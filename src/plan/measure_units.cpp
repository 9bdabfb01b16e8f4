#include "plan/measure_units.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/log.h"
#include "base/normal_draw.h"
#include "data/batches.h"
#include "model/model_on_device.h"
#include "model/parameters.h"
#include "model/random_weights.h"
#include "offload/memory/device_weights.h"
#include "offload/memory/unit_array.h"
#include "plan/machine/measure.h"
#include "plan/memory/activation_memory.h"
#include "plan/placement/unit_work.h"

namespace so {
namespace {

// One layer of each kind, in the order in which the model has them first.
struct LayerKinds {
  DecoderSpec spec;
  std::vector<std::int64_t> of_layer;  // by layer of the model, its layer of `spec`

  explicit LayerKinds(const DecoderSpec& model) : spec(model) {
    spec.layer_specs.clear();
    for (std::int64_t layer = 0; layer < model.layers; ++layer) {
      LayerSpec kind = model.layer(layer);
      // A layer that attends to the keys of one below attends to those of the layer of that kind.
      if (kind.keys_of >= 0) kind.keys_of = of_layer.at(static_cast<std::size_t>(kind.keys_of));
      const auto known = std::find(spec.layer_specs.begin(), spec.layer_specs.end(), kind);
      of_layer.push_back(known - spec.layer_specs.begin());
      if (known == spec.layer_specs.end()) spec.layer_specs.push_back(kind);
    }
    spec.layers = std::ssize(spec.layer_specs);
  }
  // The same layers several times over.
  DecoderSpec repeated(int times) const {
    DecoderSpec sample = spec;
    for (; times > 1; --times)
      sample.layer_specs.insert(sample.layer_specs.end(), spec.layer_specs.begin(), spec.layer_specs.end());
    sample.layers = std::ssize(sample.layer_specs);
    return sample;
  }
};

MicroBatch random_documents(std::int64_t vocabulary, const std::vector<std::int32_t>& offsets) {
  MicroBatch batch;
  batch.tokens = batch.padded_tokens = offsets.back();
  batch.rows = std::ssize(offsets) - 1;
  batch.trained_tokens = batch.tokens;
  batch.cu_seqlens = offsets;
  for (std::size_t document = 1; document < offsets.size(); ++document)
    for (std::int32_t i = offsets[document - 1]; i < offsets[document]; ++i) {
      const auto draw = mix_counter(static_cast<std::uint64_t>(i) + 1);
      batch.ids.push_back(static_cast<std::int32_t>(draw % static_cast<std::uint64_t>(vocabulary)));
      batch.positions.push_back(i - offsets[document - 1]);
    }
  batch.targets = batch.ids;
  return batch;
}

// Weights and gradients without an optimizer, which record when a pass comes to the end of each unit.
class TimedUnits final : public WeightSource, public GradientSink {
 public:
  TimedUnits(Device& device, const ParameterLayout& layout, const NumberFormats& formats)
      : weights_(device, layout, formats.weights), gradients_(device, layout, formats.gradients, {}, "gradients") {
    for (int unit = 0; unit < layout.units(); ++unit) {
      forward_.push_back(device.create_event(Timing::on));
      backward_.push_back(device.create_event(Timing::on));
    }
  }

  DeviceWeights& weights() { return weights_; }
  void begin() { passed_ = 0; }
  // Of the last pass, once it has run: by unit, the seconds of each way; the head's of both are its backward pass's.
  std::vector<UnitFactor> seconds() const {
    const std::size_t head = forward_.size() - 1;
    std::vector<UnitFactor> seconds(forward_.size(), {0, 0});
    for (std::size_t unit = 1; unit < head; ++unit)
      seconds[unit] = {forward_[unit]->seconds_since(*forward_[unit - 1]),
                       backward_[unit]->seconds_since(*backward_[unit + 1])};
    seconds[head].backward = backward_[head]->seconds_since(*forward_[head - 1]);
    return seconds;
  }

  void require_weights(int, Stream&) override {}
  void release_weights(int unit, Stream& stream) override {
    if (unit != passed_ || unit + 1 >= static_cast<int>(forward_.size())) return;  // of the backward pass, or the head
    stream.record(*forward_[static_cast<std::size_t>(unit)]);
    ++passed_;
  }
  Tensor weight(int first, int count) const override { return weights_.weight(first, count); }
  void require_gradients(int, Stream&) override {}
  Target gradient(int first, int count) override { return {gradients_.view(first, count), Accumulate::overwrite}; }
  void gradients_ready(int unit, Stream& stream) override { stream.record(*backward_[static_cast<std::size_t>(unit)]); }

 private:
  DeviceWeights weights_;
  UnitArray gradients_;
  std::vector<std::unique_ptr<Event>> forward_, backward_;  // by unit: the end of each way
  int passed_ = 0;                                          // units whose forward pass has ended
};

// Passes over the sample until the chip has come near the clock that it keeps: an H200 that begins cold lowers its
// clock for seconds until it draws what it may, and a layer takes 4% longer after five seconds than after half of one.
// Returns, by unit, the median of the later half of the passes.
std::vector<UnitFactor> run_passes(TimedUnits& units, ModelOnDevice& model, Stream& stream, const MicroBatch& batch) {
  using Clock = std::chrono::steady_clock;
  constexpr double enough = 2, too_much = 3;
  constexpr std::size_t least = 4, most = 512;
  std::vector<std::vector<UnitFactor>> passes;
  double all = 0;
  for (std::size_t pass = 0; pass < most && (all < enough || passes.size() < least); ++pass) {
    const auto begin = Clock::now();
    const DeviceBatch on_device = model.upload().upload(stream, batch);
    units.begin();
    model.decoder().forward_backward(stream, on_device, units, units, model.arena(), model.upload().losses(),
                                     1.0f / static_cast<float>(batch.tokens));
    stream.synchronize();
    if (pass == 0) continue;  // loads kernels, and chooses algorithms
    passes.push_back(units.seconds());
    all += std::chrono::duration<double>(Clock::now() - begin).count();
    if (all > too_much) break;
  }
  passes.erase(passes.begin(), passes.begin() + static_cast<std::ptrdiff_t>(passes.size() / 2));
  std::vector<UnitFactor> seconds = passes.front();
  for (std::size_t unit = 0; unit < seconds.size(); ++unit)
    for (const auto way : {&UnitFactor::forward, &UnitFactor::backward}) {
      std::vector<double> of_unit;
      for (const std::vector<UnitFactor>& pass : passes) of_unit.push_back(pass[unit].*way);
      seconds[unit].*way = median(std::move(of_unit));
    }
  return seconds;
}

// Returns the factors by unit of the sample, or none where it does not fit.
std::optional<std::vector<UnitFactor>> measure_sample(const PlanningMachine& machine, Runtime& runtime,
                                                      const DecoderSpec& spec, const NumberFormats& formats,
                                                      const std::vector<std::int32_t>& documents, bool any_order) {
  Device& device = runtime.device();
  const ParameterLayout layout(make_parameters(spec));
  TrainingShape shape;
  shape.micro_batch_tokens = documents.back();
  for (std::size_t i = 1; i < documents.size(); ++i)
    shape.longest_document = std::max<std::int64_t>(shape.longest_document, documents[i] - documents[i - 1]);
  DecoderSettings settings;
  settings.formats = formats;
  settings.loss_chunk_rows = choose_loss_chunk(backend_of(device), spec.vocab);
  settings.roomy_attention = true;
  settings.any_order = any_order;
  const std::size_t activations = ActivationSizer(spec, layout, backend_of(device), shape).bytes(settings);
  const std::size_t state =
      static_cast<std::size_t>(layout.elements()) * (size_of(formats.weights) + size_of(formats.gradients));
  constexpr std::size_t beside = std::size_t{1} << 30;  // batches, the table of rotations, libraries
  if (activations + state + beside > machine.device_memory.value_or(usable_host_budget(machine))) return std::nullopt;

  const auto ops = make_ops(device);  // an instance is used with one stream
  const auto stream = device.create_stream("measure units");
  TimedUnits units(device, layout, formats);
  randomize(units.weights(), spec, layout, *ops, *stream);
  ModelOnDevice model(device, *ops, *stream, spec, layout, settings, model_shape(shape));
  model.make_arena(activations);
  return run_passes(units, model, *stream, random_documents(spec.vocab, documents));
}

// The largest of all ranks'; 0, for none, of any is that of all.
std::vector<double> slowest_of_ranks(Communicator& ranks, const std::vector<double>& own) {
  std::vector<double> all(own.size() * static_cast<std::size_t>(ranks.size()));
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks.size()), std::ssize(own));
  ranks.all_gather(std::span<const double>(own), counts, std::span(all));
  std::vector<double> slowest = own;
  for (std::size_t i = 0; i < all.size(); ++i) {
    double& value = slowest[i % own.size()];
    value = all[i] == 0 || value == 0 ? 0 : std::max(value, all[i]);
  }
  return slowest;
}

}  // namespace

std::vector<UnitFactor> measure_units(const PlanningMachine& machine, Runtime& runtime, const DecoderSpec& spec,
                                      const NumberFormats& formats, const TrainingShape& shape, bool any_order,
                                      Communicator& ranks) {
  if (!machine.backend->own_processors || shape.sequence > 1 || shape.micro_batch_tokens == 0) return {};
  const LayerKinds kinds(spec);
  const std::vector<std::int32_t> documents = usual_documents(shape);
  MachineRates rates = machine.rates();
  rates.efficiencies.gradients_in_any_order = any_order;
  std::vector<double> seconds(2 * static_cast<std::size_t>(kinds.spec.layers + 2), 0.0);
  try {
    // A chip's clock follows the power that all of a pass draws, and of a pass over one layer most is the head's.
    constexpr int times = 4;
    auto measured = measure_sample(machine, runtime, kinds.repeated(times), formats, documents, any_order);
    if (!measured) measured = measure_sample(machine, runtime, kinds.spec, formats, documents, any_order);
    if (measured) {
      measured->erase(measured->end() - 1 - (std::ssize(*measured) - std::ssize(seconds) / 2), measured->end() - 1);
      for (std::size_t unit = 0; unit < measured->size(); ++unit) {
        seconds[2 * unit] = (*measured)[unit].forward;
        seconds[2 * unit + 1] = (*measured)[unit].backward;
      }
    }
  } catch (const Error& error) {
    log_detail("the units of the model are not measured: {}", error.what());
  }
  if (ranks.size() > 1) seconds = slowest_of_ranks(ranks, seconds);
  if (seconds.back() == 0) return {};  // of the head

  const std::vector<UnitWork> work = unit_work(kinds.spec, documents, formats.activations, rates.efficiencies);
  std::vector<UnitFactor> factors(static_cast<std::size_t>(spec.layers) + 2);
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    const auto kind = static_cast<std::size_t>(layer_unit(kinds.of_layer[static_cast<std::size_t>(layer)]));
    factors[static_cast<std::size_t>(layer_unit(layer))] = {
        seconds[2 * kind] / forward_seconds(work[kind], rates),
        seconds[2 * kind + 1] / backward_seconds(work[kind], rates)};
  }
  const double head = seconds.back() / (forward_seconds(work.back(), rates) + backward_seconds(work.back(), rates));
  factors.back() = {head, head};
  return factors;
}

}  // namespace so
