#include "train/model_files.h"

#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/units.h"
#include "model/config.h"
#include "model/parameters.h"

namespace so {
namespace {

constexpr std::size_t piece_bytes = std::size_t{16} << 20;

// fp16 to fp32, exact.
float widen_f16(std::uint16_t h) {
  const std::uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const std::uint32_t bits =
      exponent == 31 ? 0x7f800000u | (mantissa << 13) : ((exponent + 112) << 23) | (mantissa << 13);
  return std::bit_cast<float>(sign | bits);
}

void widen(std::span<float> out, const std::byte* bytes, DType dtype, ThreadPool& pool) {
  pool.parallel_for(static_cast<std::int64_t>(out.size()), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
    switch (dtype) {
      case DType::f32:
        std::memcpy(out.data() + begin, bytes + begin * 4, static_cast<std::size_t>(end - begin) * 4);
        break;
      case DType::bf16:
      case DType::f16:
        for (std::int64_t i = begin; i < end; ++i) {
          std::uint16_t bits;
          std::memcpy(&bits, bytes + i * 2, 2);
          out[static_cast<std::size_t>(i)] =
              dtype == DType::f16 ? widen_f16(bits) : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
        }
        break;
      default:
        SO_CHECK(false, "weights of dtype {}", name_of(dtype));
    }
  });
}

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

void ModelFiles::for_each_piece(const Piece& piece) const {
  std::vector<std::byte> buffer(piece_bytes);
  ProgressReport progress("loading weights");
  std::uint64_t done = 0;
  for (const SafetensorsReader& shard : directory_.shards()) {
    for (const std::string& name : shard.names()) {
      const int parameter = layout_->find(name);
      if (parameter < 0) continue;
      const TensorInfo& info = shard.info(name);
      for (std::uint64_t offset = 0; offset < info.bytes(); offset += piece_bytes) {
        const std::span<std::byte> bytes(buffer.data(), std::min<std::size_t>(piece_bytes, info.bytes() - offset));
        shard.read_into(name, offset, bytes);
        piece(parameter, static_cast<std::int64_t>(offset / size_of(info.dtype)), bytes, info.dtype);
        done += bytes.size();
        progress.update(static_cast<double>(done) / static_cast<double>(directory_.total_bytes()),
                        format_bytes(directory_.total_bytes()));
      }
    }
    shard.drop_cache();
  }
}

void ModelFiles::load(OffloadEngine& engine, ThreadPool& pool) const {
  SO_CHECK(engine.layout().elements() == layout_->elements(), "an engine of another model");
  for_each_piece([&](int parameter, std::int64_t begin, std::span<const std::byte> bytes, DType dtype) {
    const std::int64_t at = layout_->range(parameter).begin + begin;
    const auto n = static_cast<std::int64_t>(bytes.size() / size_of(dtype));
    engine.write_state(StateArray::master, {at, at + n}, [&](std::int64_t from, std::span<float> out) {
      widen(out, bytes.data() + static_cast<std::size_t>(from - at) * size_of(dtype), dtype, pool);
    });
  });
}

void ModelFiles::load(DeviceWeights& weights, Stream& stream, ThreadPool& pool) const {
  std::vector<float> wide;
  std::vector<bf16> narrow;
  for_each_piece([&](int parameter, std::int64_t begin, std::span<const std::byte> bytes, DType dtype) {
    const std::size_t n = bytes.size() / size_of(dtype);
    std::byte* to = weights.at(layout_->range(parameter).begin + begin);
    if (dtype == weights.dtype()) {
      stream.copy(to, bytes.data(), bytes.size());
    } else {
      wide.resize(n);
      widen(wide, bytes.data(), dtype, pool);
      if (weights.dtype() == DType::f32) {
        stream.copy(to, wide.data(), n * sizeof(float));
      } else {
        narrow.resize(n);
        for (std::size_t i = 0; i < n; ++i) narrow[i] = bf16(wide[i]);
        stream.copy(to, narrow.data(), n * sizeof(bf16));
      }
    }
    stream.synchronize();  // the staging memory is used again for the next piece
  });
}

}  // namespace so
