#include "train/model_files.h"

#include <exception>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/units.h"
#include "model/config.h"
#include "model/parameters.h"

namespace so {
namespace {

// Buffers that old checkpoints carry and that the config determines anyway.
bool derived(std::string_view name) { return name.ends_with("rotary_emb.inv_freq"); }

}  // namespace

DecoderSpec read_spec(const std::filesystem::path& directory) {
  if (!std::filesystem::is_directory(directory))
    fail("{}: no such directory; --model takes a Hugging Face model directory", directory.string());
  return read_decoder_spec(directory / "config.json");
}

std::int64_t resolve_max_length(std::int64_t max_length, bool given, const DecoderSpec& spec,
                                const std::filesystem::path& directory) {
  if (max_length <= spec.max_positions) return max_length;
  if (given)
    fail("--max_length {}: the model's limit is {} (max_position_embeddings in {}/config.json)", max_length,
         spec.max_positions, directory.string());
  return spec.max_positions;
}

ModelFiles::ModelFiles(const std::filesystem::path& directory)
    : directory_(directory),
      spec_(read_decoder_spec(directory_.config_json(), (directory / "config.json").string())),
      layout_(std::make_unique<ParameterLayout>(make_parameters(spec_))) {
  for (const Parameter& p : layout_->parameters()) {
    if (!directory_.contains(p.name)) fail("{}: tensor '{}' is missing", directory.string(), p.name);
    const TensorInfo& info = directory_.info(p.name);
    if (info.dtype != DType::f32 && info.dtype != DType::bf16 && info.dtype != DType::f16)
      fail("{}: tensor '{}' is {}; weights must be float32, bfloat16 or float16",
           directory_.shard_of(p.name).path().string(), p.name, name_of(info.dtype));
    if (info.shape != p.shape)
      fail("{}: tensor '{}' has shape {}, config.json says {}", directory_.shard_of(p.name).path().string(), p.name,
           shape_string(info.shape), shape_string(p.shape));
  }
  for (const std::string& name : directory_.tensor_names()) {
    if (layout_->find(name) >= 0 || derived(name)) continue;
    if (spec_.tied_embeddings && name == "lm_head.weight") {
      log_info("{}: lm_head.weight is left out, since config.json ties it to the embedding", directory.string());
      continue;
    }
    fail("{}: tensor '{}' belongs to no part of {}", directory_.shard_of(name).path().string(), name,
         spec_.architecture);
  }
}

LoadingRing make_loading_ring(Device& device, const ParameterLayout& layout) {
  return LoadingRing(device, LoadingRing::slot_bytes_for(layout.elements()));
}

template <class Forms, class Place>
void ModelFiles::stream_weights(Stream& stream, int readers, PageCache cache, const Forms& forms,
                                const Place& place) const {
  std::vector<ShardReader::Request> requests;
  for (const SafetensorsReader& shard : directory_.shards())
    for (const std::string& name : shard.names())
      if (const int p = layout_->find(name); p >= 0)
        requests.push_back({&shard, name, layout_->range(p).begin, forms(shard.info(name).dtype)});
  LoadingRing ring = make_loading_ring(stream.device(), *layout_);
  // Whatever happens, the ring's memory goes only when no copy uses it.
  struct Idle {
    Stream& stream;
    ~Idle() {
      try {
        stream.synchronize();
      } catch (const std::exception& error) {
        log_debug("{}: {}", stream.name(), error.what());  // thrown below, or the consequence of what is
      }
    }
  } const idle{stream};
  ShardReader reader(ring, std::move(requests), readers, cache);
  ProgressReport progress("loading weights");
  const std::string size = format_bytes(reader.total_bytes());
  while (const auto piece = reader.next()) {
    place(*piece);
    reader.release(stream);
    progress.update(static_cast<double>(reader.bytes_given()) / static_cast<double>(reader.total_bytes()), size);
  }
  stream.synchronize();
  // What lay on pages at the edges of pieces.
  if (cache == PageCache::drop)
    for (const SafetensorsReader& shard : directory_.shards()) shard.drop_cache();
}

void ModelFiles::load(OffloadEngine& engine, Stream& stream, ThreadPool& pool) const {
  SO_CHECK(engine.layout().elements() == layout_->elements(), "an engine of another model");
  stream_weights(
      stream, pool.size(), PageCache::drop, [&](DType stored) { return engine.forms(stored); },
      [&](const WeightPiece& piece) { engine.place_weights(stream, piece); });
}

void ModelFiles::load(DeviceWeights& weights, Stream& stream, ThreadPool& pool) const {
  stream_weights(
      stream, pool.size(), PageCache::keep, [&](DType) { return weights.forms(); },
      [&](const WeightPiece& piece) { weights.place(stream, piece); });
}

}  // namespace so
