// The common part of every family's config.json, and the list of families.
#include <array>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "model/config.h"
#include "model/families/family.h"
#include "model/parameters.h"

namespace so {
namespace {

constexpr std::array families{&llama_family, &qwen3_family};

// Rotary settings as transformers writes them: rope_theta and rope_scaling at the top (4.x) or rope_parameters (5.x).
void read_rope(const ConfigReader& config, DecoderSpec& spec) {
  RopeSpec& rope = spec.rope;
  const auto parameters = config.object("rope_parameters");
  const auto scaling = parameters ? parameters : config.object("rope_scaling");
  rope.theta = parameters && parameters->has("rope_theta") ? parameters->positive_number("rope_theta")
                                                            : config.positive_number("rope_theta", 10000.0);
  rope.rotary_dim = spec.head_dim;
  const double partial = parameters && parameters->has("partial_rotary_factor")
                             ? parameters->positive_number("partial_rotary_factor")
                             : config.positive_number("partial_rotary_factor", 1.0);
  if (partial != 1.0) config.refuse("partial_rotary_factor", "only 1 is supported for this architecture");
  if (!scaling) return;
  const std::string type = scaling->text("rope_type", scaling->text("type", "default"));
  if (type == "default") return;
  if (type != "llama3") scaling->refuse("rope_type", fmt::format("'{}' is not supported, only 'default' and 'llama3'", type));
  rope.scaling = RopeScaling::llama3;
  rope.factor = scaling->positive_number("factor");
  rope.low_freq_factor = scaling->positive_number("low_freq_factor");
  rope.high_freq_factor = scaling->positive_number("high_freq_factor");
  rope.original_positions = scaling->positive_int("original_max_position_embeddings");
  if (rope.high_freq_factor <= rope.low_freq_factor) scaling->refuse("high_freq_factor", "must be greater than low_freq_factor");
}

}  // namespace

const Family& find_family(std::string_view architecture) {
  for (const Family* family : families)
    if (family->architecture == architecture) return *family;
  std::string known;
  for (const Family* family : families) known += fmt::format("{}{}", known.empty() ? "" : ", ", family->architecture);
  fail("architecture '{}' is not supported; supported are {}", architecture, known);
}

DecoderSpec read_decoder_spec(std::string_view text, const std::string& origin) {
  ConfigReader config(text, origin);
  const auto architectures = config.texts("architectures");
  if (architectures.size() != 1) config.refuse("architectures", "expected one class name");
  const Family* family = nullptr;
  try {
    family = &find_family(architectures.front());
  } catch (const Error& error) {
    fail("{}: {}", origin, error.what());
  }

  DecoderSpec spec;
  spec.architecture = architectures.front();
  spec.vocab = config.positive_int("vocab_size");
  spec.hidden = config.positive_int("hidden_size");
  spec.layers = config.positive_int("num_hidden_layers");
  spec.heads = config.positive_int("num_attention_heads");
  spec.kv_heads = config.positive_int("num_key_value_heads", spec.heads);
  spec.intermediate = config.positive_int("intermediate_size");
  spec.max_positions = config.positive_int("max_position_embeddings");
  spec.rms_epsilon = static_cast<float>(config.positive_number("rms_norm_eps", 1e-6));
  spec.initializer_range = config.positive_number("initializer_range", 0.02);
  spec.attention_bias = config.boolean("attention_bias", false);
  spec.head_dim = config.has("head_dim") ? config.positive_int("head_dim") : 0;
  config.only("hidden_act", "silu");
  config.only_zero("attention_dropout", "dropout is not supported; set it to 0, as these models are trained");
  if (config.has("quantization_config"))
    config.refuse("quantization_config", "quantised weights cannot be fine-tuned here; use the unquantised model");
  family->read(config, spec);

  if (spec.heads % spec.kv_heads != 0) config.refuse("num_key_value_heads", "must divide num_attention_heads");
  if (spec.head_dim == 0) {
    if (spec.hidden % spec.heads != 0) config.refuse("head_dim", "missing, and num_attention_heads does not divide hidden_size");
    spec.head_dim = spec.hidden / spec.heads;
  }
  if (spec.head_dim % 2 != 0) config.refuse("head_dim", "must be even");
  read_rope(config, spec);
  return spec;
}

DecoderSpec read_decoder_spec(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) fail("{}: cannot be read; a Hugging Face model directory holds a config.json", file.string());
  std::stringstream text;
  text << in.rdbuf();
  return read_decoder_spec(text.str(), file.string());
}

}  // namespace so
