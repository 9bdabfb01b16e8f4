// An engine on the CPU device with synthetic gradients, and the plain loop it must equal.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "offload/counted_settings.h"
#include "offload/engine.h"
#include "offload/schedule/placement.h"
#include "optim/adamw_twin.h"
#include "support/random_tensors.h"

namespace so::test {

// Four units, decayed and not, joined matrices, sizes that need padding, one parameter that several threads share.
inline ParameterLayout engine_layout() {
  return ParameterLayout({
      {"embed", {120, 160}, true, 0, false},
      {"1.norm", {160}, false, 1, false},
      {"1.q", {80, 80}, true, 1, false},
      {"1.k", {21, 80}, true, 1, true},
      {"1.v", {21, 80}, true, 1, true},
      {"1.q_bias", {77}, false, 1, false},
      {"1.k_bias", {21}, false, 1, true},
      {"2.norm", {7}, false, 2, false},
      {"2.up", {230, 200}, true, 2, false},
      {"final_norm", {33}, false, 3, false},
      {"head", {50, 64}, true, 3, false},
  });
}

// Embedding, five layers and a head, with joined matrices, sizes that need padding, decayed and not. The bias is
// smaller than four ranks' slices.
inline const ParameterLayout& layered() {
  static const ParameterLayout layout = [] {
    std::vector<Parameter> parameters = {{"embed", {60, 80}, true, 0, false}};
    for (int layer = 1; layer <= 5; ++layer) {
      const std::string name = std::to_string(layer);
      parameters.push_back({name + ".norm", {77}, false, layer, false});
      parameters.push_back({name + ".q", {40 + layer, 80}, true, layer, false});
      parameters.push_back({name + ".k", {21, 80}, true, layer, true});
      parameters.push_back({name + ".bias", {21}, false, layer, false});
    }
    parameters.push_back({"final_norm", {33}, false, 6, false});
    parameters.push_back({"head", {50, 64}, true, 6, false});
    return ParameterLayout(std::move(parameters));
  }();
  return layout;
}

using Flat = std::vector<std::vector<float>>;  // a vector a parameter

// Multiples of 2^-8 below 8 in size, scaled by a power of two: sums of a few are exact, and sums of their squares are
// exact in double in any order, so that the reference's norm needs no agreement on an order. Tests make millions of
// them, where a generator of the standard library, not optimized or checked by a sanitizer, took a tenth of their time.
// This one is SplitMix64.
inline Flat synthetic_gradients(const ParameterLayout& layout, unsigned seed, float scale = 1) {
  std::uint64_t state = (std::uint64_t{seed} + 1) << 32;
  const float unit = scale * 0x1p-8f;
  Flat flat;
  for (const Parameter& p : layout.parameters()) {
    auto& values = flat.emplace_back(static_cast<std::size_t>(p.size()));
    for (float *x = values.data(), *end = x + values.size(); x != end; ++x) {
      std::uint64_t z = state += 0x9e3779b97f4a7c15u;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      *x = unit * static_cast<float>(static_cast<int>(z >> 52) - 2048);
    }
  }
  return flat;
}

// The optimizer as a loop over elements, without buckets, threads or copies.
class ReferenceLoop {
 public:
  ReferenceLoop(const ParameterLayout& layout, const CountedSettings& settings, const Flat& initial)
      : layout_(layout), settings_(settings), master(initial), m(initial), v(initial) {
    for (Flat* moments : {&m, &v})
      for (auto& values : *moments) std::fill(values.begin(), values.end(), 0.0f);
  }

  // Returns the clip coefficient.
  float step(const Flat& gradient, double lr, std::int64_t update_number) {
    double squares = 0;
    for (std::size_t p = 0; p < gradient.size(); ++p)
      if (trained(p))
        for (const float *g = gradient[p].data(), *end = g + gradient[p].size(); g != end; ++g)
          squares += static_cast<double>(*g) * *g;
    const double norm = std::sqrt(squares);
    const float clip =
        settings_.max_grad_norm > 0 ? static_cast<float>(std::min(1.0, settings_.max_grad_norm / (norm + 1e-6))) : 1.0f;
    step_clipped(gradient, lr, update_number, clip);
    return clip;
  }

  void step_clipped(const Flat& gradient, double lr, std::int64_t update_number, float clip) {
    for (std::size_t p = 0; p < gradient.size(); ++p) {
      const double own_lr = lr * layout_.parameter(static_cast<int>(p)).lr_multiplier;
      const AdamWStep step = make_adamw_step(settings_.adamw, own_lr, settings_.weight_decay, update_number, clip);
      const bool decay = layout_.parameter(static_cast<int>(p)).decay;
      const float* const g = gradient[p].data();
      float* const masters = master[p].data();
      float* const first = m[p].data();
      float* const second = v[p].data();
      for (std::size_t i = 0, size = trained(p) ? gradient[p].size() : 0; i < size; ++i) {
        const TwinElement now = adamw_twin(step, decay, g[i], {masters[i], first[i], second[i]});
        masters[i] = now.p;
        first[i] = now.m;
        second[i] = now.v;
      }
      if (settings_.formats.moments == DType::u8 && trained(p)) round(m[p], v[p], step.dither);
    }
  }

 private:
  // To 8 bits, and back.
  static void round(std::vector<float>& first, std::vector<float>& second, std::uint32_t dither) {
    for (std::size_t begin = 0; begin < first.size(); begin += moment_block) {
      const std::size_t end = std::min(first.size(), begin + moment_block);
      const std::span m_block = std::span(first).subspan(begin, end - begin),
                      v_block = std::span(second).subspan(begin, end - begin);
      const MomentScale m_scale(largest_magnitude(m_block)), v_scale(largest_magnitude(v_block));
      for (std::size_t i = 0; i < m_block.size(); ++i) {
        const std::uint32_t hash =
            moment_hash(std::bit_cast<std::uint32_t>(m_block[i]), std::bit_cast<std::uint32_t>(v_block[i]), dither);
        m_block[i] = first_moment_value(first_moment_code(m_block[i], m_scale, moment_dither<FirstMomentCodes>(hash)),
                                        m_scale.value);
        v_block[i] = second_moment_value(
            second_moment_code(v_block[i], v_scale, moment_dither<SecondMomentCodes>(hash)), v_scale.value);
      }
    }
  }
  bool trained(std::size_t p) const { return layout_.parameter(static_cast<int>(p)).trained; }

  const ParameterLayout& layout_;
  CountedSettings settings_;

 public:
  Flat master, m, v;
};

// Everything the engine holds, padding included.
struct EngineBytes {
  std::vector<float> master, m, v;
  std::vector<std::byte> weights;  // on the device; zeros between parameters

  bool operator==(const EngineBytes& other) const {
    const auto equal = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return equal(master, other.master) && equal(m, other.m) && equal(v, other.v) && weights == other.weights;
  }
};

class EngineRig {
 public:
  // `ranks`: null for one rank. `engine_device`: makes a device for the engine of the rig's one, whose events and
  // memory it shares.
  using MakeDevice = std::function<std::unique_ptr<Device>(Device&)>;
  EngineRig(const ParameterLayout& layout, const CountedSettings& settings, int threads,
            std::unique_ptr<UpdatePolicy> policy = nullptr, const MakeDevice& engine_device = {},
            Communicator* ranks = nullptr)
      : layout_(layout),
        cpus_(static_cast<std::size_t>(threads)),
        host_pool_("host", (std::iota(cpus_.begin(), cpus_.end(), 0), cpus_), false),
        ranks_(make_single_communicator()),
        own_device_(engine_device ? engine_device(rig_.device()) : nullptr),
        units_(settings.of(layout, ranks ? ranks->size() : 1).placement.units),
        remade_inputs_(settings.remade_inputs),
        last_seen_(static_cast<std::size_t>(layout.count())),
        engine_(own_device_ ? *own_device_ : rig_.device(), host_pool_, ranks ? *ranks : *ranks_, layout,
                through_host_memory(settings.of(layout, ranks ? ranks->size() : 1)), std::move(policy)) {
    if (!ranks) return;
    // A GPU that ranks share may not be given memory while one of them waits for another.
    for (int p = 0; p < layout_.count(); ++p) {
      const auto pinned = [&](std::int64_t elements, DType dtype) {
        const auto bytes = static_cast<std::size_t>(elements) * size_of(dtype);
        return rig_.device().allocate(MemoryKind::pinned, bytes, "test memory");
      };
      found_[p] = pinned(layout_.parameter(p).size(), engine_.formats().weights);
      if (layout_.parameter(p).joined) continue;
      std::int64_t elements = layout_.parameter(p).size();
      for (int next = p + 1; next < layout_.count() && layout_.parameter(next).joined; ++next)
        elements += layout_.parameter(next).size();
      staging_[p] = pinned(elements, engine_.formats().gradients);
    }
    ranks->barrier();
  }

  // A test may end with work under way that uses the engine's memory.
  ~EngineRig() {
    try {
      stream().synchronize();
    } catch (...) {  // its error was the test's business
    }
  }
  EngineRig(const EngineRig&) = delete;
  EngineRig& operator=(const EngineRig&) = delete;

  OffloadEngine& engine() { return engine_; }
  Stream& stream() { return rig_.stream(); }

  void load(const Flat& master) {
    for (int p = 0; p < layout_.count(); ++p) {
      const Range range = layout_.range(p);
      engine_.write_state(StateArray::master, range, [&](std::int64_t begin, std::span<float> values) {
        std::copy_n(master[static_cast<std::size_t>(p)].begin() + (begin - range.begin), values.size(), values.begin());
      });
    }
    engine_.upload_weights(stream());
  }

  // Loads the state that another engine held into this one.
  void load(const EngineBytes& saved) {
    const auto put = [&](StateArray array, const std::vector<float>& from) {
      engine_.write_state(array, {0, layout_.elements()}, [&](std::int64_t begin, std::span<float> values) {
        std::copy_n(from.begin() + begin, values.size(), values.begin());
      });
    };
    put(StateArray::master, saved.master);
    put(StateArray::first_moment, saved.m);
    put(StateArray::second_moment, saved.v);
    engine_.upload_weights(stream());
  }

  // A pass that only looks at the weights, as an evaluation.
  void forward() {
    for (int unit = 0; unit < layout_.units(); ++unit) {
      engine_.require_weights(unit, stream());
      see(unit);
      engine_.release_weights(unit, stream());
    }
  }

  // A micro-batch as a model runs it, forward through the units and back, looking at their weights (seen()) at each
  // use. Its gradients are `gradient`. `shared`, if given, is a second use of parameter 0 by the last unit, as tied
  // embeddings make. Both are copied: a step that fails leaves work under way. `before`, if given, is called when a
  // unit's backward pass is about to be enqueued. `order`: of the units' backward passes; none: last to first, with
  // forward passes between them where the settings say that inputs are made again.
  void micro_batch(const Flat& gradient, bool first, const std::vector<float>* shared = nullptr,
                   const std::function<void(int unit)>& before = {}, std::vector<int> order = {}) {
    forward();
    if (shared != nullptr) engine_.require_gradients(0, stream());
    if (shared != nullptr) write(0, 1, *shared, first ? Accumulate::overwrite : Accumulate::add);
    std::vector<BackwardStep> steps;
    for (const int unit : order) steps.push_back({unit});
    if (order.empty()) {
      steps = backward_steps(layout_.units(), layout_.first_trained_unit(), remade_inputs_);
      // A model goes no further down.
      for (int unit = layout_.first_trained_unit(); unit-- > 0;) steps.push_back({unit});
    }
    for (const auto [unit, forward_again] : steps) {
      if (unit < layout_.first_trained_unit()) {
        engine_.gradients_ready(unit, stream());
        continue;
      }
      if (forward_again) {
        engine_.require_weights(unit, stream());
        see(unit, true);
        engine_.release_weights(unit, stream());
        continue;
      }
      if (before) before(unit);
      engine_.require_weights(unit, stream());
      see(unit);
      engine_.require_gradients(unit, stream());
      const auto [begin, end] = layout_.unit_parameters(unit);
      for (int p = begin; p < end;) {
        int count = 1;
        while (p + count < end && layout_.parameter(p + count).joined) ++count;
        std::vector<float> values;
        for (int i = p; i < p + count; ++i) {
          const std::vector<float>& one = gradient[static_cast<std::size_t>(i)];
          values.insert(values.end(), one.begin(), one.end());
        }
        const bool fresh = first || units_[static_cast<std::size_t>(unit)].sliced;
        write(p, count, std::move(values),
              fresh && !(p == 0 && shared != nullptr) ? Accumulate::overwrite : Accumulate::add);
        p += count;
      }
      engine_.release_weights(unit, stream());
      engine_.gradients_ready(unit, stream());
    }
  }

  // A hash of all weights that the micro-batches have found, in order, but for those that units run forward again have
  // found as before. The stream has run.
  std::uint64_t seen() const { return seen_; }

  // Holds the model's stream up.
  void delay(int microseconds) {
    stream().host("delay", [microseconds] { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); });
  }

  // One optimizer step of a single micro-batch.
  Verdict step(const Flat& gradient, double lr, std::int64_t update_number) {
    engine_.begin_last_micro_batch(lr, update_number);
    micro_batch(gradient, true);
    return engine_.finish_step(stream());
  }

  EngineBytes bytes() {
    EngineBytes all;
    read(StateArray::master, {0, layout_.elements()}, all.master);
    read(StateArray::first_moment, {0, layout_.elements()}, all.m);
    read(StateArray::second_moment, {0, layout_.elements()}, all.v);
    all.weights = weights();
    return all;
  }

  // Those on the device; zeros between parameters.
  std::vector<std::byte> weights() {
    const std::size_t size = size_of(engine_.formats().weights);
    std::vector<std::byte> weights(static_cast<std::size_t>(layout_.elements()) * size);
    for (int unit = 0; unit < layout_.units(); ++unit) {
      engine_.require_weights(unit, stream());
      for (auto [p, end] = layout_.unit_parameters(unit); p < end; ++p)
        stream().copy(weights.data() + static_cast<std::size_t>(layout_.range(p).begin) * size,
                      engine_.weight(p).data(), engine_.weight(p).bytes());
      engine_.release_weights(unit, stream());
    }
    stream().synchronize();
    return weights;
  }

  // Appends; zeros for moments of frozen parameters, of which there are none.
  void read(StateArray array, Range range, std::vector<float>& to) {
    const auto skip_frozen = [&](std::int64_t end) {
      if (array == StateArray::master || !layout_.has_frozen()) return;
      to.insert(to.end(), static_cast<std::size_t>(end - range.begin), 0.0f);
      range.begin = end;
    };
    engine_.read_state(array, range, [&](std::int64_t begin, std::span<const float> values) {
      skip_frozen(begin);
      EXPECT_EQ(begin, range.begin) << "pieces come in order, without gaps";
      range.begin = begin + static_cast<std::int64_t>(values.size());
      to.insert(to.end(), values.begin(), values.end());
    });
    skip_frozen(range.end);
    EXPECT_EQ(range.begin, range.end);
  }

  // Master, moments and device weights hold the reference's bits.
  testing::AssertionResult equals(const ReferenceLoop& reference) {
    const EngineBytes all = bytes();
    for (int p = 0; p < layout_.count(); ++p) {
      const auto i = static_cast<std::size_t>(p);
      const auto slice = [&](const std::vector<float>& flat) {
        return std::vector<float>(flat.begin() + layout_.range(p).begin, flat.begin() + layout_.range(p).end);
      };
      const std::string& name = layout_.parameter(p).name;
      if (auto same = same_bits(slice(all.master), reference.master[i]); !same)
        return same << " (master of " << name << ")";
      if (auto same = same_bits(slice(all.m), reference.m[i]); !same) return same << " (m of " << name << ")";
      if (auto same = same_bits(slice(all.v), reference.v[i]); !same) return same << " (v of " << name << ")";
      if (auto same = same_weights(all.weights, p, reference.master[i]); !same)
        return same << " (weights of " << name << ")";
    }
    return testing::AssertionSuccess();
  }

 private:
  // Ranks that are threads may share a GPU, which NCCL does not let them.
  static EngineSettings through_host_memory(EngineSettings settings) {
    settings.collectives = CollectiveRoute::host;
    return settings;
  }

  void see(int unit, bool again = false) {
    const auto [first, end] = layout_.unit_parameters(unit);
    for (int p = first; p < end; ++p) {
      const Tensor weight = engine_.weight(p);
      Buffer& found = found_[p];
      if (!found) found = rig_.device().allocate(MemoryKind::pinned, weight.bytes(), "test weights");
      stream().copy(found.data(), weight.data(), weight.bytes());
      stream().host("look at weights",
                    [this, p, again, bytes = static_cast<const char*>(found.data()), size = weight.bytes()] {
                      const std::size_t hash = std::hash<std::string_view>{}({bytes, size});
                      std::size_t& last = last_seen_[static_cast<std::size_t>(p)];
                      if (!again || hash != last) seen_ = 31 * seen_ + hash;
                      last = hash;
                    });
    }
  }

  void write(int first, int count, std::vector<float> values, Accumulate expected) {
    const GradientSink::Target target = engine_.gradient(first, count);
    bool wanted = false;
    for (int p = first; p < first + count; ++p) wanted = wanted || layout_.parameter(p).trained;
    ASSERT_EQ(static_cast<bool>(target.tensor), wanted) << layout_.parameter(first).name;
    if (!wanted) return;
    ASSERT_EQ(target.mode, expected) << layout_.parameter(first).name;
    // By way of the host, since a host function cannot reach a GPU's memory.
    Buffer& staging = staging_[first];
    ASSERT_TRUE(!staging || staging.bytes() == target.tensor.bytes()) << layout_.parameter(first).name;
    if (!staging) staging = rig_.device().allocate(MemoryKind::pinned, target.tensor.bytes(), "test gradient");
    const auto enqueue = [&]<class T>(T* on_device) {
      stream().copy(staging.data(), on_device, staging.bytes());
      stream().host("write gradient", [staging = staging.data(), mode = target.mode, values = std::move(values)] {
        // A step has more of these than of anything else, so there is no access here but those of the elements.
        T* to = static_cast<T*>(staging);
        const float* from = values.data();
        const float* const end = from + values.size();
        if (mode == Accumulate::add)
          for (; from != end; ++from, ++to) *to = T(static_cast<float>(*to) + *from);
        else if constexpr (std::is_same_v<T, float>)
          std::copy(from, end, to);
        else
          for (; from != end; ++from, ++to) *to = T(*from);
      });
      stream().copy(on_device, staging.data(), staging.bytes());
    };
    if (target.tensor.dtype() == DType::bf16)
      enqueue(target.tensor.as<bf16>());
    else
      enqueue(target.tensor.as<float>());
  }

  testing::AssertionResult same_weights(const std::vector<std::byte>& weights, int p,
                                        const std::vector<float>& master) {
    const bool half = engine_.formats().weights == DType::bf16;
    const std::size_t size = half ? 2 : 4;
    for (std::size_t i = 0; i < master.size(); ++i) {
      // bf16 is the upper half of fp32, rounded to nearest, ties to even.
      const auto bits = std::bit_cast<std::uint32_t>(master[i]);
      const std::uint32_t expected = half ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : bits;
      std::uint32_t got = 0;
      std::memcpy(&got, weights.data() + (static_cast<std::size_t>(layout_.range(p).begin) + i) * size, size);
      if (got != expected)
        return testing::AssertionFailure() << "element " << i << " has bits " << got << ", expected " << expected;
    }
    return testing::AssertionSuccess();
  }

  const ParameterLayout& layout_;
  DeviceRig rig_;
  std::map<int, Buffer> staging_, found_;  // by parameter
  std::uint64_t seen_ = 0;
  std::vector<int> cpus_;
  ThreadPool host_pool_;
  std::unique_ptr<Communicator> ranks_;
  const std::unique_ptr<Device> own_device_;
  const std::vector<UnitPlacement> units_;
  const std::vector<bool> remade_inputs_;
  std::vector<std::size_t> last_seen_;  // by parameter: the hash of its weights where a pass found them last
  OffloadEngine engine_;
};

}  // namespace so::test
