#include "commands/bench/bench_state.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "commands/bench/random_model.h"
#include "model/random_weights.h"
#include "offload/memory/device_weights.h"
#include "offload/memory/unit_array.h"

namespace so {
namespace {

class PlainState final : public BenchState, private StepState, private GradientSink {
 public:
  PlainState(Device& device, const ParameterLayout& layout, const NumberFormats& formats)
      : layout_(layout),
        weights_(device, layout, formats.weights),
        gradients_(device, layout, formats.gradients, {}, "gradients", UnitArray::Of::gradients),
        written_(static_cast<std::size_t>(layout.count()), false) {}

  StepState& of_step() override { return *this; }
  void randomize(const DecoderSpec& spec, Ops& ops, Stream& stream) override {
    so::randomize(weights_, spec, layout_, ops, stream);
  }

 private:
  WeightSource& weights() override { return weights_; }
  GradientSink& gradients() override { return *this; }
  void begin_step() override {}
  EngineCounters counters() const override {
    EngineCounters counters;
    counters.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - made_).count();
    return counters;
  }
  void begin_last_micro_batch(double, std::int64_t) override {}
  Verdict finish_step(Stream&) override {
    written_.assign(written_.size(), false);
    return {};
  }

  void require_gradients(int, Stream&) override {}
  Target gradient(int first, int count) override {
    if (!layout_.trains_any(first, count)) return {};
    const auto begin = written_.begin() + first;
    const Target target{gradients_.view(first, count), *begin ? Accumulate::add : Accumulate::overwrite};
    std::fill_n(begin, count, true);
    return target;
  }
  void gradients_ready(int, Stream&) override {}

  const ParameterLayout& layout_;
  DeviceWeights weights_;
  UnitArray gradients_;
  std::vector<bool> written_;
  const std::chrono::steady_clock::time_point made_ = std::chrono::steady_clock::now();
};

class EngineBench final : public BenchState {
 public:
  EngineBench(Runtime& runtime, Communicator& ranks, const ParameterLayout& layout, const EngineSettings& settings)
      : pool_(runtime.host_pool()), engine_(runtime.device(), pool_, ranks, layout, settings), state_(engine_) {}

  StepState& of_step() override { return state_; }
  void randomize(const DecoderSpec& spec, Ops&, Stream& stream) override {
    so::randomize(engine_, spec, pool_, stream);
  }
  void require_updates(Stream& stream) override { engine_.require_updates(stream); }

 private:
  ThreadPool& pool_;
  OffloadEngine engine_;
  EngineState state_;
};

}  // namespace

std::unique_ptr<BenchState> make_engine_state(Runtime& runtime, Communicator& ranks, const ParameterLayout& layout,
                                              const EngineSettings& settings) {
  return std::make_unique<EngineBench>(runtime, ranks, layout, settings);
}

std::unique_ptr<BenchState> make_plain_state(Device& device, const ParameterLayout& layout,
                                             const NumberFormats& formats) {
  return std::make_unique<PlainState>(device, layout, formats);
}

}  // namespace so
