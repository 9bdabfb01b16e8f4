#include "checkpoint/rope_extension.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/json_text.h"
#include "model/config.h"

namespace so {
namespace {

constexpr double most_positions = 1e9;

std::string_view name_of(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::none:
      return "default";
    case RopeScaling::linear:
      return "linear";
    case RopeScaling::llama3:
      return "llama3";
    case RopeScaling::yarn:
      return "yarn";
    case RopeScaling::longrope:
      return "longrope";
    case RopeScaling::dynamic:
      return "dynamic";
  }
  SO_BUG("rope scaling {}", static_cast<int>(scaling));
}

// More positions and nothing else.
std::int64_t plain_positions(const RopeRequest& request, const DecoderSpec& spec, const std::string& origin) {
  if (request.factor)
    fail("--rope_factor {:g} divides frequencies, and --rope_scaling none keeps them: leave one of them out",
         *request.factor);
  if (spec.rope.scaling == RopeScaling::longrope || spec.rope.scaling == RopeScaling::dynamic)
    fail(
        "--rope_scaling none: the rotation in {} is of the type '{}', whose angles depend on max_position_embeddings; "
        "such a model cannot have more than its {} positions",
        origin, name_of(spec.rope.scaling), spec.max_positions);
  if (request.max_length <= spec.max_positions)
    fail("--rope_scaling none adds positions for a --max_length beyond the {} in {}: give one, or leave it out",
         spec.max_positions, origin);
  return request.max_length;
}

double resolve_factor(const RopeRequest& request, const DecoderSpec& spec, const std::string& origin) {
  const auto own = static_cast<double>(spec.max_positions), wanted = static_cast<double>(request.max_length);
  const std::string_view kind = enum_name(request.kind);
  if (!request.factor && wanted <= own)
    fail("--rope_scaling {}: give --rope_factor X, or a --max_length beyond the {} positions in {}", kind,
         spec.max_positions, origin);
  const double factor = request.factor.value_or(std::ceil(wanted / own));
  if (!(factor > 1)) fail("--rope_factor {:g}: a scaling by at most 1 adds no positions; give more than 1", factor);
  if (factor * own > most_positions)
    fail("--rope_factor {:g} times the {} positions in {} are more than any model has", factor, spec.max_positions,
         origin);
  if (request.kind != RopeExtension::dynamic && wanted > std::floor(factor * own))
    fail("--rope_factor {:g} reaches {:.0f} positions, and --max_length is {}: give at least {:g}", factor,
         std::floor(factor * own), request.max_length, std::ceil(wanted / own));
  return factor;
}

void require_scalable(const RopeRequest& request, const DecoderSpec& spec, const std::string& origin) {
  const std::string_view kind = enum_name(request.kind);
  if (spec.rope.scaling != RopeScaling::none)
    fail(
        "--rope_scaling {}: the model has a rotation of the type '{}' already ({}), which it was trained with; "
        "--rope_scaling none gives it more positions with that",
        kind, name_of(spec.rope.scaling), origin);
  if (spec.local_rope)
    fail(
        "--rope_scaling {}: the model has a rotation for each type of layer ({}), and which of them is meant is not clear",
        kind, origin);
  if (request.kind == RopeExtension::yarn && spec.rope.theta == 1)
    fail("--rope_scaling yarn: rope_theta in {} is 1, and yarn divides by its logarithm", origin);
  if (request.kind == RopeExtension::dynamic && request.max_length > spec.max_positions)
    fail(
        "--rope_scaling dynamic: beyond the {} positions in {} its frequencies depend on the longest sequence that was "
        "computed before, so that a run would have no one model; train with --max_length {} at most, or use yarn or "
        "linear",
        spec.max_positions, origin, spec.max_positions);
}

// Old files of some families mean another rotation by the name, and transformers still reads them so.
void require_read_as(RopeExtension kind, const std::string& text, const std::string& origin, const DecoderSpec& spec) {
  const auto refuse = [&](const std::string& why) {
    fail("--rope_scaling {}: in a config.json of {} this is not what the name says ({}); use linear, or none",
         enum_name(kind), spec.class_name(), why);
  };
  RopeScaling read{};
  try {
    read = read_decoder_spec(text, origin).rope.scaling;
  } catch (const Error& error) {
    refuse(error.what());
  }
  if (name_of(read) != enum_name(kind)) refuse(fmt::format("it is read as {}", name_of(read)));
}

}  // namespace

std::string extended_config(const std::string& config_json, const std::string& origin, const RopeRequest& request) {
  if (request.kind == RopeExtension::automatic) {
    if (request.factor) fail("--rope_factor {:g} is of a scaling: add --rope_scaling yarn or linear", *request.factor);
    return config_json;
  }
  const DecoderSpec spec = read_decoder_spec(config_json, origin);
  const HeldNumbers held(config_json);
  auto config = nlohmann::ordered_json::parse(held.text());
  nlohmann::ordered_json& text = spec.wrapper.empty() ? config : config["text_config"];
  if (request.kind == RopeExtension::none) {
    text["max_position_embeddings"] = plain_positions(request, spec, origin);
    return held.restored(config.dump(2)) + "\n";
  }
  require_scalable(request, spec, origin);
  const double factor = resolve_factor(request, spec, origin);
  const char* const key =
      text.contains("rope_parameters") && text["rope_parameters"].is_object() ? "rope_parameters" : "rope_scaling";
  nlohmann::ordered_json& scaling = text[key];
  if (!scaling.is_object()) scaling = nlohmann::ordered_json::object();
  scaling.erase("type");
  scaling["rope_type"] = std::string(enum_name(request.kind));
  scaling["factor"] = factor;
  if (request.kind == RopeExtension::yarn) scaling["original_max_position_embeddings"] = spec.max_positions;
  if (request.kind != RopeExtension::dynamic)
    text["max_position_embeddings"] =
        static_cast<std::int64_t>(std::floor(factor * static_cast<double>(spec.max_positions)));
  std::string extended = held.restored(config.dump(2)) + "\n";
  require_read_as(request.kind, extended, origin, spec);
  return extended;
}

}  // namespace so
