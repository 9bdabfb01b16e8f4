// A fixture model loaded into a decoder, for the decoder's tests: weights and gradients that watch how the decoder uses
// them, and activations that begin as NaN in an arena of exactly the size a dry run asked for.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/sequence_slice.h"
#include "device/arena.h"
#include "model/config.h"
#include "model/decoder/decoder.h"
#include "model/parameters.h"
#include "model/rope.h"
#include "offload/memory/activation_store.h"
#include "offload/memory/device_weights.h"
#include "support/paths.h"
#include "support/random_tensors.h"
#include "support/rig.h"
#include "support/safetensors_reader.h"
#include "support/text_tensors.h"

namespace so::test {

struct Document {
  std::vector<std::int32_t> ids, labels;  // labels are not shifted; negative: not trained
};

// Documents one after another, as the decoder takes them.
struct HostBatch {
  std::vector<double> ids, targets, positions, offsets;  // whole numbers
  std::int64_t tokens = 0, longest = 0;
  std::int64_t sequence_tokens = 0, sequence_trained = 0;  // of all slices; 0: it is whole
  std::int64_t sequence_begin = 0;                         // the tokens before this slice

  static HostBatch join(std::span<const Document> documents) {
    HostBatch batch;
    batch.offsets.push_back(0);
    for (const Document& document : documents) {
      const std::size_t length = document.ids.size();
      for (std::size_t i = 0; i < length; ++i) {
        batch.ids.push_back(document.ids[i]);
        batch.targets.push_back(i + 1 < length ? std::max(document.labels[i + 1], -1) : -1);
        batch.positions.push_back(static_cast<double>(i));
      }
      batch.tokens += static_cast<std::int64_t>(length);
      batch.longest = std::max(batch.longest, static_cast<std::int64_t>(length));
      batch.offsets.push_back(static_cast<double>(batch.tokens));
    }
    return batch;
  }
  std::int64_t documents() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::int64_t trained() const {
    return std::count_if(targets.begin(), targets.end(), [](double target) { return target >= 0; });
  }
  // What rank `rank` of `ranks` has of it.
  HostBatch slice(int rank, int ranks) const {
    HostBatch part = *this;
    part.sequence_tokens = tokens;
    part.sequence_trained = trained();
    const std::int64_t begin = slice_begin(tokens, ranks, rank), end = slice_begin(tokens, ranks, rank + 1);
    for (auto member : {&HostBatch::ids, &HostBatch::targets, &HostBatch::positions})
      (part.*member).assign((this->*member).begin() + begin, (this->*member).begin() + end);
    part.tokens = end - begin;
    part.sequence_begin = begin;
    return part;
  }
};

// tests/fixtures/models/NAME; its README tells what is in it.
struct ModelFixture {
  explicit ModelFixture(const std::string& name, const ParameterRules& rules = {})
      : path(std::filesystem::path(test::fixtures()) / "models" / name),
        spec(read_decoder_spec(path / "model" / "config.json")),
        layout(make_parameters(spec, rules)),
        weights(text_tensors(spec, read_model_weights(path / "model"))),
        expected(nlohmann::json::parse(read_file(path / "expected.json"))) {
    spec.selection_biases = selection_biases(spec, read_model_weights(path / "model"));
    read_documents();
  }
  // The same with so many layers: those of the fixture again and again. What is expected of the fixture does not hold.
  static ModelFixture deep(const std::string& name, std::int64_t layers, const ParameterRules& rules = {}) {
    ModelFixture fixture(name);
    DecoderSpec& spec = fixture.spec;
    const std::int64_t before = std::exchange(spec.layers, layers);
    const std::vector<LayerSpec> layer_specs = spec.layer_specs;
    for (std::int64_t layer = before; layer < layers && !layer_specs.empty(); ++layer)
      spec.layer_specs.push_back(layer_specs[static_cast<std::size_t>(layer % before)]);
    const std::vector<float> biases = spec.selection_biases;
    const auto row = static_cast<std::size_t>(spec.experts.count);
    for (std::int64_t layer = before; layer < layers && !biases.empty(); ++layer) {
      const auto from = biases.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(layer % before) * row);
      spec.selection_biases.insert(spec.selection_biases.end(), from, from + static_cast<std::ptrdiff_t>(row));
    }
    fixture.layout = ParameterLayout(make_parameters(spec, rules));
    const std::string first = fixture.layout.parameter(fixture.layout.unit_parameters(1).first).name,
                      prefix = first.substr(0, first.find(".0.") + 1);
    for (const Parameter& parameter : fixture.layout.parameters()) {
      if (!parameter.name.starts_with(prefix)) {
        if (StoredTensor& stored = fixture.weights.at(parameter.name); stored.shape != parameter.shape)
          stored = repeated(stored, parameter.shape);
        continue;
      }
      const std::size_t dot = parameter.name.find('.', prefix.size());
      const std::int64_t layer = std::stoll(parameter.name.substr(prefix.size(), dot - prefix.size()));
      const std::string from = prefix + std::to_string(layer % before) + parameter.name.substr(dot);
      fixture.weights[parameter.name] = fixture.weights.at(from);
    }
    return fixture;
  }
  // A larger matrix of the rows and columns of a smaller one again and again.
  static StoredTensor repeated(const StoredTensor& from, const std::vector<std::int64_t>& shape) {
    StoredTensor to = from;
    to.shape = shape;
    to.values.clear();
    for (std::int64_t row = 0; row < shape.at(0); ++row)
      for (std::int64_t column = 0; column < shape.at(1); ++column)
        to.values.push_back(from.values.at(
            static_cast<std::size_t>(row % from.shape.at(0) * from.shape.at(1) + column % from.shape.at(1))));
    return to;
  }
  // The documents whose logits and gradients the fixture holds.
  std::span<const Document> batch() const {
    return std::span(documents).first(expected.at("batch").at("documents").get<std::size_t>());
  }

  std::filesystem::path path;
  DecoderSpec spec;
  ParameterLayout layout;
  StoredTensors weights;
  nlohmann::json expected;
  std::vector<Document> documents;

 private:
  void read_documents() {
    std::istringstream lines(read_file(path / "data.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto record = nlohmann::json::parse(line);
      documents.push_back({record.at("input_ids").get<std::vector<std::int32_t>>(),
                           record.at("labels").get<std::vector<std::int32_t>>()});
    }
  }
};

// Weights on the device, which may be asked for only between require and release of their unit.
class WatchedWeights final : public WeightSource {
 public:
  WatchedWeights(Device& device, const ParameterLayout& layout, DType dtype)
      : layout_(layout), weights_(device, layout, dtype), required_(static_cast<std::size_t>(layout.units()), 0) {}

  void require_weights(int unit, Stream&) override {
    ++required_.at(static_cast<std::size_t>(unit));
    if (in_use_++ == 0) used_.push_back(unit);
  }
  void release_weights(int unit, Stream&) override {
    EXPECT_GT(required_.at(static_cast<std::size_t>(unit))--, 0) << "unit " << unit << " released before required";
    --in_use_;
  }
  Tensor weight(int first, int count = 1) const override {
    for (int i = first; i < first + count; ++i)
      EXPECT_GT(required_.at(static_cast<std::size_t>(layout_.parameter(i).unit)), 0)
          << layout_.parameter(i).name << " used outside require and release";
    return weights_.weight(first, count);
  }
  void expect_all_released() const {
    for (std::size_t unit = 0; unit < required_.size(); ++unit) EXPECT_EQ(required_[unit], 0) << "unit " << unit;
  }
  DeviceWeights& device_weights() { return weights_; }
  // Units in the order of their uses, but for those that were used within another's; from here on it is empty again.
  std::vector<int> take_used() { return std::exchange(used_, {}); }

 private:
  const ParameterLayout& layout_;
  DeviceWeights weights_;
  std::vector<int> required_, used_;
  int in_use_ = 0;
};

// Gradients in one flat array that begins as NaN: what is never written, or added to before it is overwritten,
// shows. Nothing may be written once its unit was declared ready, and units must become ready last first.
class FlatGradients final : public GradientSink {
 public:
  FlatGradients(Stream& stream, const ParameterLayout& layout, DType dtype = DType::f32)
      : layout_(layout),
        dtype_(dtype),
        flat_(stream, dtype, {layout.elements()}),
        written_(static_cast<std::size_t>(layout.count()), false),
        next_ready_(layout.units() - 1) {}

  void require_gradients(int unit, Stream&) override {
    EXPECT_LE(unit, next_ready_) << "gradients of unit " << unit << " required after they were ready";
    required_.insert(unit);
  }
  Target gradient(int first, int count = 1) override {
    const auto asked = layout_.parameters().subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    if (std::none_of(asked.begin(), asked.end(), [](const Parameter& p) { return p.trained; })) return {};
    EXPECT_TRUE(required_.contains(layout_.parameter(first).unit))
        << layout_.parameter(first).name << " written without being required";
    const bool add = written_.at(static_cast<std::size_t>(first));
    for (int i = first; i < first + count; ++i) {
      EXPECT_EQ(written_.at(static_cast<std::size_t>(i)), add) << layout_.parameter(i).name;
      EXPECT_LE(layout_.parameter(i).unit, next_ready_) << layout_.parameter(i).name << " written after it was ready";
      written_[static_cast<std::size_t>(i)] = true;
    }
    return {layout_.view(flat_.tensor().data(), dtype_, first, count), add ? Accumulate::add : Accumulate::overwrite};
  }
  void gradients_ready(int unit, Stream&) override {
    EXPECT_EQ(unit, next_ready_--);
    const auto [first, last] = layout_.unit_parameters(unit);
    for (int i = first; i < last; ++i)
      EXPECT_TRUE(written_[static_cast<std::size_t>(i)] || !layout_.parameter(i).trained)
          << layout_.parameter(i).name << " is ready but has no gradient";
  }
  void end_micro_batch() {
    EXPECT_EQ(next_ready_, -1) << "units whose gradients were never declared ready";
    next_ready_ = layout_.units() - 1;
    required_.clear();
  }
  // Without those of layers' scales, which nobody trains.
  std::map<std::string, std::vector<float>> by_name(Stream& stream) const {
    const std::vector<double> all = flat_.values(stream);
    std::map<std::string, std::vector<float>> result;
    for (int i = 0; i < layout_.count(); ++i) {
      if (layout_.parameter(i).name.ends_with(".layer_scalar")) continue;
      const Range range = layout_.range(i);
      result[layout_.parameter(i).name] = std::vector<float>(all.begin() + range.begin, all.begin() + range.end);
    }
    return result;
  }

 private:
  const ParameterLayout& layout_;
  const DType dtype_;
  TestTensor flat_;
  std::vector<bool> written_;
  std::set<int> required_;  // in this micro-batch
  int next_ready_;
};

struct StepResult {
  std::vector<float> losses;  // of every token, micro-batch after micro-batch
  std::map<std::string, std::vector<float>> gradients;
};

// One decoder with its weights, on any device: on a dry one the same calls run and every result is zeros.
class DecoderRig {
 public:
  static constexpr std::int64_t positions = 128;

  DecoderRig(Stream& stream, Ops& ops, const ModelFixture& fixture, const DecoderSettings& settings,
             SequenceExchange* exchange = nullptr)
      : stream_(stream),
        fixture_(fixture),
        settings_(settings),
        weights_(stream.device(), fixture.layout, settings.formats.weights),
        rope_(make_rope(stream, fixture.spec)),
        selection_biases_(stream, DType::f32, {static_cast<std::int64_t>(fixture.spec.selection_biases.size())},
                          {fixture.spec.selection_biases.begin(), fixture.spec.selection_biases.end()}),
        store_(stream.device(), kept_on_host(settings.keep), 1024 * static_cast<std::size_t>(fixture.spec.hidden)),
        decoder_(fixture.spec, fixture.layout, ops, rope_, settings,
                 fixture.spec.selection_biases.empty() ? Tensor() : Tensor(selection_biases_), &store_, exchange) {
    load();
    if (!stream.device().backed()) return;
    dry_device_ = make_dry_device(stream.device().kind());
    dry_stream_ = dry_device_->create_stream("dry");
    dry_ops_ = make_ops(*dry_device_);
    dry_ = std::make_unique<DecoderRig>(*dry_stream_, *dry_ops_, fixture, settings, exchange);
  }

  // Losses and the gradients of grad_scale * sum(losses) over all micro-batches.
  StepResult step(const std::vector<HostBatch>& micro_batches, double grad_scale, DType dtype = DType::f32) {
    StepResult result;
    FlatGradients gradients(stream_, fixture_.layout, dtype);
    for (const HostBatch& batch : micro_batches) {
      const TestTensor losses(stream_, DType::f32, {batch.tokens});
      // The dry run's gradients are its own, so that the real ones are asked for as in a real step.
      in_arena(batch, nullptr, [&](DecoderRig& rig, const DeviceBatch& views, Arena& arena) {
        FlatGradients ignored(rig.stream_, fixture_.layout, dtype);
        GradientSink& sink = &rig == this ? static_cast<GradientSink&>(gradients) : ignored;
        rig.decoder_.forward_backward(rig.stream_, views, rig.weights_, sink, arena, losses,
                                      static_cast<float>(grad_scale));
      });
      gradients.end_micro_batch();
      append(result.losses, losses);
    }
    result.gradients = gradients.by_name(stream_);
    return result;
  }
  StepResult step(const HostBatch& batch, DType gradients = DType::f32) {
    return step({batch}, 1.0 / static_cast<double>(batch.trained()), gradients);
  }

  std::vector<float> losses(const HostBatch& batch) {
    const TestTensor losses(stream_, DType::f32, {batch.tokens});
    in_arena(batch, nullptr, [&](DecoderRig& rig, const DeviceBatch& views, Arena& arena) {
      rig.decoder_.forward_loss(rig.stream_, views, rig.weights_, arena, losses);
    });
    std::vector<float> result;
    append(result, losses);
    return result;
  }

  // Logits of the last `rows` tokens, row after row.
  std::vector<float> logits(const HostBatch& batch, std::int64_t rows, KvCache* cache = nullptr) {
    const TestTensor logits(stream_, DType::f32, {rows, fixture_.spec.vocab});
    in_arena(batch, cache, [&](DecoderRig& rig, const DeviceBatch& views, Arena& arena) {
      KvCache dry_cache;  // advanced in place of the real one
      if (cache) dry_cache = *cache;
      rig.decoder_.forward_logits(rig.stream_, views, rig.weights_, arena, logits,
                                  !cache         ? nullptr
                                  : &rig == this ? cache
                                                 : &dry_cache);
    });
    std::vector<float> result;
    append(result, logits);
    return result;
  }
  std::vector<float> logits(const HostBatch& batch) { return logits(batch, batch.tokens); }

  // A cache for one document and the memory behind it.
  struct Cache {
    KvCache views;
    std::vector<TestTensor> memory;
  };
  Cache make_cache(std::int64_t capacity) {
    Cache cache;
    const DecoderSpec& spec = fixture_.spec;
    const auto take = [&](DType dtype, std::initializer_list<std::int64_t> shape) -> Tensor {
      cache.memory.emplace_back(stream_, dtype, shape);
      return cache.memory.back();
    };
    const DType t = settings_.formats.activations;
    for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
      LayerCache& of_layer = cache.views.layers.emplace_back();
      if (spec.is_delta(layer)) {
        of_layer.state = take(DType::f32, {spec.delta.v_heads, spec.delta.k_dim, spec.delta.v_dim});
        of_layer.convolution = take(t, {spec.delta.convolution - 1, spec.delta.convolved_width()});
      } else if (const StateSpaceSpec& space = spec.state_space; spec.is_state_space(layer)) {
        of_layer.state = take(DType::f32, {space.heads, space.state, space.head_dim});
        of_layer.convolution = take(t, {space.convolution - 1, space.convolved_width()});
      } else if (spec.attends(layer)) {
        of_layer.keys_values = take(t, {capacity, 2 * spec.shape(layer).kv_width()});
      }
    }
    return cache;
  }
  // Logits of the last token of `ids`, continuing what the cache holds of a text of `text_tokens` in the end; 0: so
  // far.
  std::vector<float> feed(Cache& cache, std::span<const std::int32_t> ids, std::int64_t text_tokens = 0) {
    HostBatch batch;
    batch.tokens = batch.longest = static_cast<std::int64_t>(ids.size());
    batch.offsets = {0, static_cast<double>(batch.tokens)};
    text_tokens_ = std::max(text_tokens, cache.views.used + batch.tokens);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      batch.ids.push_back(ids[i]);
      batch.targets.push_back(-1);
      batch.positions.push_back(static_cast<double>(cache.views.used) + static_cast<double>(i));
    }
    return logits(batch, 1, &cache.views);
  }

  // The arena's high-water mark of the call made last, in the dry run and in the real one.
  std::size_t dry_high_water() const { return dry_high_water_; }
  std::size_t real_high_water() const { return real_high_water_; }
  // Units in the order of their uses, since this was asked last (WatchedWeights::take_used()).
  std::vector<int> take_used_units() { return weights_.take_used(); }

 private:
  using Body = std::function<void(DecoderRig&, const DeviceBatch&, Arena&)>;

  static TestTensor make_rope(Stream& stream, const DecoderSpec& spec) {
    const std::vector<float> table = rope_table(spec, positions);
    return TestTensor(stream, DType::f32, {static_cast<std::int64_t>(table.size())}, {table.begin(), table.end()});
  }

  // The rows of the RoPE table for the batch's positions.
  std::vector<double> rope_rows(const HostBatch& batch, const KvCache* cache) const {
    const RopeRows rows(fixture_.spec, positions);
    std::vector<double> result = batch.positions;
    for (std::size_t d = 0; d + 1 < batch.offsets.size(); ++d) {
      const double length = cache ? static_cast<double>(text_tokens_) : batch.offsets[d + 1] - batch.offsets[d];
      for (std::size_t i = 0; i < result.size(); ++i)
        if (const double at = static_cast<double>(batch.sequence_begin) + static_cast<double>(i);
            at >= batch.offsets[d] && at < batch.offsets[d + 1])
          result[i] += static_cast<double>(rows.first(static_cast<std::int64_t>(length)));
    }
    return result;
  }

  void load() {
    ASSERT_EQ(static_cast<int>(fixture_.weights.size()), fixture_.layout.count());
    for (int i = 0; i < fixture_.layout.count(); ++i) {
      const Parameter& parameter = fixture_.layout.parameter(i);
      ASSERT_TRUE(fixture_.weights.contains(parameter.name)) << parameter.name;
      const StoredTensor& stored = fixture_.weights.at(parameter.name);
      ASSERT_EQ(stored.shape, parameter.shape) << parameter.name;
      std::byte* to = weights_.device_weights().at(fixture_.layout.range(i).begin);
      if (settings_.formats.weights == DType::bf16) {
        std::vector<bf16> rounded;
        for (const float value : stored.values) rounded.emplace_back(value);
        stream_.copy(to, rounded.data(), rounded.size() * sizeof(bf16));
        stream_.synchronize();
      } else {
        stream_.copy(to, stored.values.data(), stored.values.size() * sizeof(float));
        stream_.synchronize();
      }
    }
  }

  // Runs `body` on the dry rig first, then here in an arena of the size that took.
  void in_arena(const HostBatch& batch, const KvCache* cache, const Body& body) {
    if (dry_) {
      dry_->in_arena(batch, cache, body);
      dry_high_water_ = dry_->real_high_water_;
    }
    const std::int64_t held = cache ? cache->used : 0;
    std::vector<double> key_offsets = batch.offsets;
    if (cache) key_offsets.back() += static_cast<double>(held);
    const auto list = [&](const std::vector<double>& values) {
      return TestTensor(stream_, DType::i32, {static_cast<std::int64_t>(values.size())}, values);
    };
    const TestTensor ids = list(batch.ids), targets = list(batch.targets), places = list(rope_rows(batch, cache)),
                     cu_q = list(batch.offsets), cu_k = list(key_offsets);
    DeviceBatch views;
    views.ids = ids;
    views.targets = targets;
    views.positions = places;
    views.sequence_tokens = batch.sequence_tokens;
    views.trained = views.is_slice() ? batch.sequence_trained : batch.trained();
    views.spans.cu_q = cu_q, views.spans.cu_k = cu_k;
    views.spans.documents = batch.documents();
    views.spans.max_q = batch.longest, views.spans.max_k = batch.longest + held;

    Arena arena(stream_.device(), MemoryKind::device, "activations", dry_high_water_);
    if (dry_) {
      const Arena::Scope scope(arena);
      const Tensor all = arena.acquire("all", DType::u8, {static_cast<std::int64_t>(dry_high_water_)});
      const std::vector<std::byte> nan(all.bytes(), std::byte{0xff});
      stream_.copy(all.data(), nan.data(), nan.size());
      stream_.synchronize();
    }
    body(*this, views, arena);
    stream_.synchronize();
    weights_.expect_all_released();
    real_high_water_ = arena.high_water();
  }

  void append(std::vector<float>& to, const TestTensor& tensor) const {
    const std::vector<double> values = tensor.values(stream_);
    to.insert(to.end(), values.begin(), values.end());
  }

  Stream& stream_;
  const ModelFixture& fixture_;
  const DecoderSettings settings_;
  WatchedWeights weights_;
  TestTensor rope_, selection_biases_;
  std::int64_t text_tokens_ = 0;  // with a cache
  ActivationStore store_;         // of 256 tokens
  Decoder decoder_;
  std::unique_ptr<Device> dry_device_;
  std::unique_ptr<Stream> dry_stream_;
  std::unique_ptr<Ops> dry_ops_;
  std::unique_ptr<DecoderRig> dry_;
  std::size_t dry_high_water_ = 0, real_high_water_ = 0;
};

// |actual - expected| <= relative * |expected|, in the L2 norm. An expectation that is all but zero proves nothing.
inline void expect_near_in_norm(const std::vector<float>& actual, const std::vector<float>& expected, double relative,
                                const std::string& what) {
  EXPECT_GT(norm(expected), 0) << what;
  EXPECT_LE(distance(actual, expected), relative * norm(expected)) << what << ", norm " << norm(expected);
}

inline std::vector<float> rows_of(const std::vector<float>& matrix, std::int64_t begin, std::int64_t rows,
                                  std::int64_t width) {
  return {matrix.begin() + begin * width, matrix.begin() + (begin + rows) * width};
}

}  // namespace so::test
