#include "checkpoint/source_model.h"

#include <exception>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/quantities.h"
#include "checkpoint/rank_files.h"
#include "checkpoint/selection_biases.h"
#include "checkpoint/stream_tensors.h"
#include "model/config.h"
#include "model/parameters.h"
#include "offload/engine.h"
#include "ranks/together.h"

namespace so {
namespace {

// Some files repeat a tied embedding as the output projection.
std::vector<ParameterFiles::Copy> possible_copies(const DecoderSpec& spec, const ParameterLayout& layout,
                                                  const StoredNames& names) {
  if (!spec.tied_embeddings) return {};
  return {{names.stored("lm_head.weight"), make_parameter_index(spec, layout).embedding}};
}

DecoderSpec with_expert_names(DecoderSpec spec, const HfDirectory& directory) {
  find_expert_names(spec, [&](std::string_view name) { return directory.contains(name); });
  return spec;
}

}  // namespace

bool has_weight_files(const std::filesystem::path& directory) {
  if (!is_directory_path(directory)) return false;
  for (const std::filesystem::path& entry : entries_of(directory)) {
    const std::string name = entry.filename().string();
    for (const std::string_view suffix : {".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json"})
      if (name.ends_with(suffix)) return true;
  }
  return false;
}

DecoderSpec with_expert_names(DecoderSpec spec, const std::filesystem::path& directory) {
  if (!has_either_expert_names(spec) || !has_weight_files(directory)) return spec;
  return with_expert_names(std::move(spec), HfDirectory(directory));
}

DecoderSpec read_spec(const std::filesystem::path& directory, const RopeRequest& rope) {
  if (!is_directory_path(directory))
    fail("{}: no such directory; --model takes a Hugging Face model directory, or ORG/NAME of one in the hub's cache",
         directory.string());
  const std::string config = (directory / "config.json").string();
  DecoderSpec spec = read_decoder_spec(directory / "config.json");  // whose complaints come first
  if (rope.kind != RopeExtension::automatic || rope.factor)
    spec = read_decoder_spec(extended_config(read_text_file(config, 16 << 20), config, rope), config);
  return with_expert_names(std::move(spec), directory);
}

std::int64_t resolve_max_length(std::int64_t max_length, bool given, const DecoderSpec& spec,
                                const std::filesystem::path& directory) {
  if (max_length <= spec.max_positions) return max_length;
  if (given)
    fail(
        "--max_length {}: the model's limit is {} (max_position_embeddings in {}/config.json); train takes "
        "--rope_scaling yarn, linear or none to go beyond",
        max_length, spec.max_positions, directory.string());
  return spec.max_positions;
}

ModelFiles::ModelFiles(const std::filesystem::path& directory, const ParameterRules& rules, const RopeRequest& rope)
    : directory_(directory),
      config_json_(extended_config(directory_.config_json(), (directory / "config.json").string(), rope)),
      spec_(with_expert_names(read_decoder_spec(config_json_, (directory / "config.json").string()), directory_)),
      layout_(std::make_unique<ParameterLayout>(make_parameters(spec_, rules))),
      names_(names_in_files(
          spec_, [&](std::string_view name) { return directory_.contains(name); }, printable_path(directory_.path()))),
      files_(directory_, *layout_, possible_copies(spec_, *layout_, names_), spec_.class_name(), names_) {
  spec_.selection_biases = read_selection_biases(directory_, spec_, names_);
  for (const ParameterFiles::Copy& copy : files_.copies())
    log_info("{}: {} is the embedding, since config.json ties them; the file repeats it", directory.string(),
             copy.name);
  if (files_.quantised() > 0)
    log_info(
        "{}: {} tensors are in MXFP4; they are widened, which is exact, and a trained "
        "model has them unquantised, without quantization_config in its config.json",
        directory.string(), files_.quantised());
  if (files_.in_fp8() > 0)
    log_info(
        "{}: {} tensors are in FP8; they are multiplied by their scales in fp32, and a trained model has them "
        "unquantised, without quantization_config in its config.json{}",
        directory.string(), files_.in_fp8(), files_.input_scales() > 0 ? " and without the scales of activations" : "");
}

std::vector<std::string> ModelFiles::carried_lines() const {
  std::uint64_t bytes = 0;
  std::size_t tensors = 0;
  std::string stale;
  for (const ParameterFiles::Carried& carried : files_.carried()) {
    if (carried.constant) continue;
    bytes += carried.info().bytes();
    ++tensors;
    if (stale.empty() && carried.prediction_head) stale = carried.tensor;
  }
  std::vector<std::string> lines;
  if (bytes > 0)
    lines.push_back(fmt::format("{}: {} of {} tensors, {}, are no part of the text model: they are copied as they are",
                                directory_.path().string(), tensors, directory_.tensor_names().size(),
                                format_bytes(bytes)));
  if (!stale.empty())
    lines.push_back(fmt::format(
        "{}: '{}' and the like predict further tokens from the text model's states; they are copied untrained, so that "
        "they fit the trained model less well (speculative decoding with them accepts fewer tokens)",
        directory_.path().string(), printable(stale)));
  return lines;
}

LoadingRing make_loading_ring(Device& device, const ParameterLayout& layout) {
  return LoadingRing(device, LoadingRing::slot_bytes_for(layout.elements()), largest_packed_bytes(layout));
}

template <class Place>
void ModelFiles::stream_weights(Stream& stream, std::vector<ShardReader::Request> requests, int readers,
                                PageCache cache, NonFinite non_finite, const Place& place) const {
  LoadingRing ring = make_loading_ring(stream.device(), *layout_);
  stream_tensors(ring, stream, std::move(requests), readers, cache, non_finite, "loading weights", place);
}

void ModelFiles::place_own(OffloadEngine& engine, Stream& stream, ThreadPool& pool) const {
  SO_CHECK(engine.layout().elements() == layout_->elements(), "an engine of another model");
  stream_weights(
      stream, requests_within(engine.own_ranges(), files_.requests([&](DType stored) { return engine.forms(stored); })),
      pool.size(), PageCache::drop, NonFinite::refuse,
      [&](const WeightPiece& piece) { engine.place_weights(stream, piece); });
}

void ModelFiles::place_frozen(OffloadEngine& engine, LoadingRing& ring, Stream& stream, ThreadPool& pool) const {
  std::vector<ShardReader::Request> requests = files_.requests([&](DType stored) { return engine.forms(stored); });
  std::erase_if(requests, [&](const ShardReader::Request& request) {
    const ParameterLayout& layout = engine.layout();
    return layout.parameter(layout.first_ending_after(request.at)).trained;
  });
  stream_tensors(ring, stream, requests_within(engine.own_ranges(), std::move(requests)), pool.size(), PageCache::drop,
                 NonFinite::refuse, "loading frozen weights",
                 [&](const WeightPiece& piece) { engine.place_weights(stream, piece); });
}

void ModelFiles::load(OffloadEngine& engine, Stream& stream, ThreadPool& pool) const {
  const TimeLimitAtLeast patience(engine.ranks(), seconds_for_files(files_.bytes()));
  together(engine.ranks(), [&] { place_own(engine, stream, pool); });
  engine.gather_placed(stream);
}

void ModelFiles::load(DeviceWeights& weights, Stream& stream, ThreadPool& pool) const {
  stream_weights(stream, files_.requests([&](DType) { return weights.forms(); }), pool.size(), PageCache::keep,
                 NonFinite::warn, [&](const WeightPiece& piece) { weights.place(stream, piece); });
}

}  // namespace so
