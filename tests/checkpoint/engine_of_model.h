// A model directory's engine on the CPU device, as the trainer makes it, for tests below the command line.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/mix_bits.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/source_model.h"
#include "offload/counted_settings.h"
#include "offload/engine.h"
#include "ops/runtime.h"
#include "support/files.h"
#include "support/raw_tensors.h"
#include "support/safetensors_reader.h"
#include "support/training_run.h"

namespace so::test {

class EngineOfModel {
 public:
  EngineOfModel(const std::filesystem::path& directory, DType compute, std::int64_t bucket_elements = 1024,
                Owner owner = Owner::host)
      : EngineOfModel(directory, nullptr, compute, DType::f32, bucket_elements, owner) {}
  // Of one of several ranks; null: the only one.
  EngineOfModel(const std::filesystem::path& directory, Communicator* ranks, DType compute, DType moments,
                std::int64_t bucket_elements = 1024, Owner owner = Owner::host)
      : files_(directory),
        runtime_(DeviceChoice::cpu, 2),
        only_(make_single_communicator()),
        engine_(runtime_.device(), runtime_.host_pool(), ranks ? *ranks : *only_, files_.layout(),
                settings_of(files_.layout(), ranks ? ranks->size() : 1, compute, moments, bucket_elements, owner)),
        stream_(runtime_.device().create_stream("test")) {}

  const ModelFiles& files() const { return files_; }
  const ParameterLayout& layout() const { return files_.layout(); }
  Runtime& runtime() { return runtime_; }
  OffloadEngine& engine() { return engine_; }
  Stream& stream() { return *stream_; }

  void load() { files_.load(engine_, *stream_, runtime_.host_pool()); }
  void load_checkpoint(const std::filesystem::path& path) {
    so::load_checkpoint(path, files_, engine_, *stream_, runtime_.host_pool());
  }

  // Master and moments of every parameter from a seed and their places: no fp32 weight survives rounding to bf16. With
  // several ranks each fills its slices.
  void fill(unsigned seed) {
    for (const StateArray array : state_arrays) {
      const std::uint32_t random_bits = array == StateArray::second_moment ? 0x03ffffffu : 0x83ffffffu;  // not negative
      for (int p = 0; p < layout().count(); ++p)
        engine_.write_state(array, layout().range(p), [&](std::int64_t begin, std::span<float> values) {
          auto at = (std::uint64_t{seed} << 40) + (static_cast<std::uint64_t>(array) << 36) +
                    static_cast<std::uint64_t>(begin) + 1;
          for (float& x : values)
            x = std::bit_cast<float>(0x3c000001u | (static_cast<std::uint32_t>(mix_bits(at++)) & random_bits));
        });
    }
    engine_.upload_weights(*stream_);
  }

  // One optimizer step with gradients that are all `value`.
  Verdict step(float value, std::int64_t update_number) {
    Stream* const stream = stream_.get();
    engine_.begin_last_micro_batch(1e-2, update_number);
    for (int unit = layout().units() - 1; unit >= 0; --unit) {
      engine_.require_weights(unit, *stream);
      engine_.require_gradients(unit, *stream);
      for (auto [p, end] = layout().unit_parameters(unit); p < end; ++p) {
        const Tensor to = engine_.gradient(p).tensor;
        stream->host("fill", [to, value] {
          for (float& g : to.span<float>()) g = value;
        });
      }
      engine_.gradients_ready(unit, *stream);
    }
    return engine_.finish_step(*stream);
  }

  // Bits of a parameter in master and moments (with several ranks of this one's slices) and, as uint32, device weights.
  struct Bits {
    std::vector<std::uint32_t> master, m, v, weights;
    bool operator==(const Bits&) const = default;
  };
  std::vector<Bits> bits() {
    Stream* const stream = stream_.get();
    for (int unit = 0; unit < layout().units(); ++unit) engine_.require_weights(unit, *stream);
    std::vector<Bits> all;
    for (int p = 0; p < layout().count(); ++p) {
      const Range range = layout().range(p);
      const auto n = static_cast<std::size_t>(range.size());
      const auto of = [&](StateArray array) {
        std::vector<std::uint32_t> bits;
        engine_.read_state(array, range, [&](std::int64_t, std::span<const float> values) {
          for (const float x : values) bits.push_back(std::bit_cast<std::uint32_t>(x));
        });
        return bits;
      };
      const Tensor weight = engine_.weight(p);
      std::vector<std::byte> raw(weight.bytes());
      stream->copy(raw.data(), weight.data(), raw.size());
      stream->synchronize();
      const std::size_t size = size_of(weight.dtype());
      std::vector<std::uint32_t> weights(n);
      for (std::size_t i = 0; i < n; ++i) std::memcpy(&weights[i], raw.data() + i * size, size);
      all.push_back(
          {of(StateArray::master), of(StateArray::first_moment), of(StateArray::second_moment), std::move(weights)});
    }
    return all;
  }

 private:
  static EngineSettings settings_of(const ParameterLayout& layout, int ranks, DType compute, DType moments,
                                    std::int64_t bucket_elements, Owner owner) {
    CountedSettings settings;
    settings.counts.device_units = owner == Owner::device ? layout.units() : 0;
    settings.formats = model_formats(compute);
    settings.formats.moments = moments;
    settings.placement.bucket_elements = bucket_elements;
    return settings.of(layout, ranks);
  }

  ModelFiles files_;
  Runtime runtime_;
  const std::unique_ptr<Communicator> only_;
  OffloadEngine engine_;
  std::unique_ptr<Stream> stream_;  // ends first: its work uses the engine's memory
};

// fp32 to bf16, nearest, ties to even, as its upper half's bits: an independent statement of the rounding.
inline std::uint32_t bf16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t low = bits & 0xffffu, high = bits >> 16;
  return low > 0x8000u || (low == 0x8000u && (high & 1u) != 0) ? high + 1 : high;
}

inline std::filesystem::path model_directory(const std::string& fixture) { return model_fixture(fixture) / "model"; }

}  // namespace so::test
