// The common part of every family's config.json, and the list of families.
#include <array>

#include "base/error.h"
#include "base/file.h"
#include "model/config.h"
#include "model/families/family.h"
#include "model/parameters.h"

namespace so {
namespace {

constexpr std::array families{&llama_family, &qwen3_family};

// Rotary settings as transformers writes them: rope_theta and rope_scaling at the top (4.x) or rope_parameters (5.x).
void read_rope(const ConfigReader& config, DecoderSpec& spec) {
  RopeSpec& rope = spec.rope;
  if (config.object("rope_parameters") && config.object("rope_scaling"))
    config.refuse("rope_scaling", "given beside rope_parameters; remove the one that is not meant");
  const auto parameters = config.object("rope_parameters");
  const auto scaling = parameters ? parameters : config.object("rope_scaling");
  // A value inside that object wins over one at the top, as in transformers.
  const auto number = [&](std::string_view key, double fallback) {
    const double outer = config.positive_number(key, fallback);
    return scaling ? scaling->positive_number(key, outer) : outer;
  };
  rope.theta = number("rope_theta", 10000.0);
  rope.rotary_dim = spec.head_dim;
  if (number("partial_rotary_factor", 1.0) != 1.0)
    config.refuse("partial_rotary_factor", "only 1 is supported for this architecture");
  if (!scaling) return;
  const std::string type = scaling->text("rope_type", scaling->text("type", "default"));
  if (type == "default") return;
  if (type != "llama3")
    scaling->refuse("rope_type", fmt::format("'{}' is not supported, only 'default' and 'llama3'", printable(type)));
  rope.scaling = RopeScaling::llama3;
  rope.factor = scaling->positive_number("factor");
  rope.low_freq_factor = scaling->positive_number("low_freq_factor");
  rope.high_freq_factor = scaling->positive_number("high_freq_factor");
  rope.original_positions = scaling->positive_int("original_max_position_embeddings");
  if (rope.high_freq_factor <= rope.low_freq_factor)
    scaling->refuse("high_freq_factor", "must be greater than low_freq_factor");
}

// Later code multiplies these sizes in 64 bits, and lists every parameter. The limits are far beyond any model; a file
// that exceeds them would not say so, it would overflow.
void require_countable(const ConfigReader& config, const DecoderSpec& s) {
  constexpr std::int64_t widest = std::int64_t{1} << 24, deepest = std::int64_t{1} << 14;
  constexpr double most_parameters = 1e15;
  const auto at_most = [&](std::string_view key, std::int64_t value, std::int64_t limit) {
    if (value > limit) config.refuse(key, fmt::format("{} is more than any model has (at most {})", value, limit));
  };
  at_most("num_hidden_layers", s.layers, deepest);
  at_most("hidden_size", s.hidden, widest);
  at_most("intermediate_size", s.intermediate, widest);
  at_most("num_attention_heads", s.heads, widest);
  at_most("head_dim", s.head_dim, widest / s.heads);
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  const double parameters =
      real(s.layers) * real(s.hidden) * (2 * real(s.q_width()) + 2 * real(s.kv_width()) + 3 * real(s.intermediate)) +
      real(s.vocab) * real(s.hidden);
  if (parameters > most_parameters)
    config.refuse("num_hidden_layers",
                  fmt::format("with the other sizes this makes {:.1e} parameters; some size is wrong", parameters));
}

}  // namespace

const Family& find_family(std::string_view architecture) {
  for (const Family* family : families)
    if (family->architecture == architecture) return *family;
  std::string known;
  for (const Family* family : families) known += fmt::format("{}{}", known.empty() ? "" : ", ", family->architecture);
  fail("architecture '{}' is not supported; supported are {}", printable(architecture), known);
}

DecoderSpec read_decoder_spec(std::string_view text, const std::string& origin) {
  ConfigReader config(text, origin);
  const auto architectures = config.texts("architectures");
  if (architectures.size() != 1) config.refuse("architectures", "expected one class name");
  const Family* family = nullptr;
  try {
    family = &find_family(architectures.front());
  } catch (const Error& error) {
    config.refuse("architectures", error.what());
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
    if (spec.hidden % spec.heads != 0)
      config.refuse("head_dim", "missing, and num_attention_heads does not divide hidden_size");
    spec.head_dim = spec.hidden / spec.heads;
  }
  if (spec.head_dim % 2 != 0) config.refuse("head_dim", "must be even");
  require_countable(config, spec);
  read_rope(config, spec);
  return spec;
}

DecoderSpec read_decoder_spec(const std::filesystem::path& file) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    fail("{}: no such file; a Hugging Face model directory holds a config.json", printable_path(file));
  constexpr std::uint64_t most_bytes = 16 << 20;
  return read_decoder_spec(read_text_file(file, most_bytes), file.string());
}

}  // namespace so
