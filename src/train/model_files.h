// A Hugging Face model directory as a decoder: spec, parameter layout, and the weights streamed into place.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/thread_pool.h"
#include "io/hf_directory.h"
#include "model/spec.h"
#include "offload/engine.h"

namespace so {

class ModelFiles {
 public:
  // Opens and checks all: config, and every tensor's name, shape and dtype against the spec. Throws Error naming the
  // file and tensor.
  explicit ModelFiles(const std::filesystem::path& directory);

  const DecoderSpec& spec() const { return spec_; }
  const ParameterLayout& layout() const { return *layout_; }
  const HfDirectory& directory() const { return directory_; }

  // Reads every parameter, shard by shard, widened to fp32, into the engine's master weights, whoever owns them. Shows
  // progress when it takes long. `pool` converts. Weights on the device follow by upload_weights().
  void load(OffloadEngine& engine, ThreadPool& pool) const;
  // The same into device weights, through a staging buffer: the model is never whole in host memory.
  void load(DeviceWeights& weights, Stream& stream, ThreadPool& pool) const;

 private:
  using Piece = std::function<void(int parameter, std::int64_t begin, std::span<const std::byte> bytes, DType dtype)>;
  void for_each_piece(const Piece& piece) const;

  HfDirectory directory_;
  DecoderSpec spec_;
  std::unique_ptr<ParameterLayout> layout_;
};

// The spec of DIRECTORY/config.json, without touching the weights.
DecoderSpec read_spec(const std::filesystem::path& directory);

// Tokens a document may have. The model's limit lowers our default, never what the user gave: then it is an Error.
std::int64_t resolve_max_length(std::int64_t max_length, bool given, const DecoderSpec& spec,
                                const std::filesystem::path& directory);

}  // namespace so
