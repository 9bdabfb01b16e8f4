// A Hugging Face model directory as a decoder: spec, parameter layout, and the weights streamed into place.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/rope_extension.h"
#include "checkpoint/source_tensors.h"
#include "io/hf_directory.h"
#include "io/shard_reader.h"
#include "model/parameter_rules.h"
#include "model/spec.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

class DeviceWeights;
class OffloadEngine;
class ThreadPool;

class ModelFiles {
 public:
  // Opens and checks all: config, and every tensor's name, shape and dtype against the spec (source_tensors.h).
  // Throws Error naming the file and tensor. `rules`: what a run says of parameters, for the layout.
  // `rope`: more positions than config.json has, which config_json() then says.
  explicit ModelFiles(const std::filesystem::path& directory, const ParameterRules& rules = {},
                      const RopeRequest& rope = {});

  const DecoderSpec& spec() const { return spec_; }
  const ParameterLayout& layout() const { return *layout_; }
  const HfDirectory& directory() const { return directory_; }
  // Opens the small files beside the weights, so that what is exported has them when the directory is gone.
  void hold_small_files() { directory_.hold_auxiliary_files(); }
  // Has what is exported get these texts instead, by name (io/hf_directory.h).
  void replace_small_files(std::map<std::string, std::string> texts) {
    directory_.replace_auxiliary_files(std::move(texts));
  }
  // The text of config.json as the spec was read from it, and as it is exported.
  const std::string& config_json() const { return config_json_; }
  const ParameterFiles& files() const { return files_; }
  // Returns the lines of the log about tensors that are copied instead of trained.
  std::vector<std::string> carried_lines() const;

  // Reads every parameter, shard by shard, and places it: in an engine as master weights, whoever owns them, and as
  // weights in their own format; or as weights only. Through a ring of pinned memory (make_loading_ring()), so that the
  // model is never whole in host memory on its way; as many threads read as `pool` has, within the ring's limit. The
  // work is enqueued on `stream`; all of it is done on return. Shows progress when it takes long.
  //
  // Page cache: training reads a model once and needs the memory, so an engine's load gives pages back right behind it.
  // A program that runs a model is often run again, so the other overload leaves them. Weights that are not finite: an
  // engine's load refuses them, naming file and tensor; the other warns.
  //
  // An engine's load is a collective of its ranks, which throw together (ranks/together.h). Each rank reads its slices
  // alone, and they are gathered; quantised tensors are read whole by each.
  void load(OffloadEngine& engine, Stream& stream, ThreadPool& pool) const;
  void load(DeviceWeights& weights, Stream& stream, ThreadPool& pool) const;
  // Does the part of an engine's load that is no collective; OffloadEngine::gather_placed() must follow.
  void place_own(OffloadEngine& engine, Stream& stream, ThreadPool& pool) const;
  // The same of the parameters that the engine's layout has frozen, and through a ring that is there.
  void place_frozen(OffloadEngine& engine, LoadingRing& ring, Stream& stream, ThreadPool& pool) const;

 private:
  template <class Place>
  void stream_weights(Stream& stream, std::vector<ShardReader::Request> requests, int readers, PageCache cache,
                      NonFinite non_finite, const Place& place) const;

  HfDirectory directory_;
  std::string config_json_;
  DecoderSpec spec_;
  std::unique_ptr<ParameterLayout> layout_;
  StoredNames names_;
  ParameterFiles files_;
};

// Makes the ring that loading takes beside the model, for plans and for the loading itself.
LoadingRing make_loading_ring(Device& device, const ParameterLayout& layout);

// Whether a directory holds weights, in whatever format.
bool has_weight_files(const std::filesystem::path& directory);

// The spec with the names of experts that the weights in a directory have, if there are any, and if the family has
// several (has_either_expert_names()).
DecoderSpec with_expert_names(DecoderSpec spec, const std::filesystem::path& directory);

// The spec of DIRECTORY/config.json, with_expert_names(); with as many positions as `rope` asks for.
DecoderSpec read_spec(const std::filesystem::path& directory, const RopeRequest& rope = {});

// Tokens a document may have. The model's limit lowers our default, never what the user gave: then it is an Error.
std::int64_t resolve_max_length(std::int64_t max_length, bool given, const DecoderSpec& spec,
                                const std::filesystem::path& directory);

}  // namespace so
