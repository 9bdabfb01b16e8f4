#include "model/stored_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>

#include "base/error.h"
#include "model/parameters.h"

namespace so {
namespace {

constexpr TextNames family_names{.model = "model.", .lm_head = "lm_head."};

// `name` with `to` in place of the `from` that it begins with; empty if it does not.
std::string exchanged(std::string_view name, std::string_view from, std::string_view to) {
  return name.starts_with(from) ? fmt::format("{}{}", to, name.substr(from.size())) : std::string();
}

bool has_role(const DecoderSpec& spec, Role role) {
  const auto names = find_family(spec.architecture).names;
  return std::any_of(names.begin(), names.end(), [&](const TensorName& row) { return row.role == role; });
}

// The number behind `prefix` that `name` has, and a dot; -1 if it has none.
std::int64_t number_in(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return -1;
  const std::string_view rest = name.substr(prefix.size());
  std::int64_t number = -1;
  const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  return error == std::errc() && stop != rest.data() + rest.size() && *stop == '.' ? number : -1;
}

// The keys and values of layers that attend to another's, which published files have nevertheless.
std::vector<std::string> unused_names(const DecoderSpec& spec) {
  constexpr std::array roles{Role::k, Role::v, Role::k_bias, Role::v_bias, Role::k_norm};
  std::vector<std::string> unused;
  for (std::int64_t layer = 0; spec.shares_keys() && layer < spec.layers; ++layer)
    for (const TensorName& row : find_family(spec.architecture).names)
      if (spec.layer(layer).keys_of >= 0 && std::find(roles.begin(), roles.end(), row.role) != roles.end())
        unused.push_back(fmt::format(fmt::runtime(row.name), layer));
  return unused;
}

}  // namespace

StoredNames::StoredNames(const DecoderSpec& spec)
    : constants_(selection_bias_names(spec)),
      unused_(unused_names(spec)),
      layers_(find_family(spec.architecture).extra_layers ? spec.layers : 0) {
  std::erase(constants_, std::string());
}

StoredNames::StoredNames(const DecoderSpec& spec, const Wrapper& wrapper, const TextNames& text) : StoredNames(spec) {
  wrapper_ = &wrapper;
  text_ = text;
}

std::string StoredNames::stored(std::string_view parameter) const {
  if (std::string name = exchanged(parameter, family_names.model, text_.model); !name.empty()) return name;
  if (std::string name = exchanged(parameter, family_names.lm_head, text_.lm_head); !name.empty()) return name;
  return std::string(parameter);
}

std::string StoredNames::parameter(std::string_view stored) const {
  if (wrapper_ == nullptr) return std::string(stored);
  if (std::string name = exchanged(stored, text_.model, family_names.model); !name.empty()) return name;
  return exchanged(stored, text_.lm_head, family_names.lm_head);
}

bool StoredNames::carries(std::string_view stored) const {
  const auto begins = [&](std::string_view prefix) { return stored.starts_with(prefix); };
  return is_prediction_head(stored) || is_constant(stored) || is_unused(stored) ||
         (wrapper_ != nullptr && std::any_of(wrapper_->carried.begin(), wrapper_->carried.end(), begins));
}

bool StoredNames::is_prediction_head(std::string_view stored) const {
  return stored.starts_with("mtp.") || (layers_ > 0 && number_in(parameter(stored), "model.layers.") >= layers_);
}

bool StoredNames::is_constant(std::string_view stored) const {
  return !constants_.empty() && std::find(constants_.begin(), constants_.end(), parameter(stored)) != constants_.end();
}

bool StoredNames::is_unused(std::string_view stored) const {
  return !unused_.empty() && std::find(unused_.begin(), unused_.end(), parameter(stored)) != unused_.end();
}

std::vector<std::string> selection_bias_names(const DecoderSpec& spec) {
  if (!spec.experts.selection_bias) return {};
  std::vector<std::string> names(static_cast<std::size_t>(spec.layers));
  for (const TensorName& row : find_family(spec.architecture).names)
    for (std::int64_t layer = 0; row.role == Role::selection_bias && layer < spec.layers; ++layer)
      if (spec.layer(layer).experts)
        names[static_cast<std::size_t>(layer)] = fmt::format(fmt::runtime(row.name), layer);
  return names;
}

std::vector<StoredNames> possible_names(const DecoderSpec& spec) {
  const Wrapper* const wrapper = find_wrapper(spec);
  if (wrapper == nullptr) return {StoredNames(spec)};
  std::vector<StoredNames> all;
  for (const TextNames& text : wrapper->names) all.emplace_back(spec, *wrapper, text);
  return all;
}

bool has_either_expert_names(const DecoderSpec& spec) {
  return spec.expert_layers() > 0 && has_role(spec, Role::expert_down) && has_role(spec, Role::experts_down);
}

void find_expert_names(DecoderSpec& spec, const std::function<bool(std::string_view)>& contains) {
  if (!has_either_expert_names(spec)) return;
  std::int64_t layer = 0;
  while (!spec.layer(layer).experts) ++layer;
  for (const TensorName& row : find_family(spec.architecture).names) {
    if (row.role != Role::expert_down && row.role != Role::experts_down) continue;
    const std::string name = fmt::format(fmt::runtime(row.name), layer, 0);
    for (const StoredNames& names : possible_names(spec))
      if (contains(names.stored(name))) spec.experts.stacked = row.role == Role::experts_down;
  }
}

StoredNames names_in_files(const DecoderSpec& spec, const std::function<bool(std::string_view)>& contains,
                           const std::string& origin) {
  const std::vector<StoredNames> all = possible_names(spec);
  if (spec.wrapper.empty()) return all.front();
  const std::string embedding = make_parameters(spec).front().name;
  std::string tried;
  for (const StoredNames& names : all) {
    const std::string name = names.stored(embedding);
    if (contains(name)) return names;
    tried += fmt::format("{}'{}'", tried.empty() ? "" : " or ", name);
  }
  fail("{}: there is no tensor {}, by which the text model of {} would be found", origin, tried, spec.wrapper);
}

}  // namespace so
