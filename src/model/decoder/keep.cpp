#include "model/decoder/keep.h"

#include <algorithm>
#include <cstddef>

#include "base/error.h"
#include "model/parameters.h"

namespace so {

std::string_view name_of(Keep keep) {
  switch (keep) {
    case Keep::all:
      return "all";
    case Keep::light:
      return "light";
    case Keep::no_gate_up:
      return "no_gate_up";
    case Keep::attention:
      return "attention";
    case Keep::input:
      return "input";
    case Keep::host:
      return "input on the host";
    case Keep::nothing:
      return "nothing";
  }
  SO_BUG("keep {}", static_cast<int>(keep));
}

int kept_on_host(const std::vector<Keep>& keep) {
  return static_cast<int>(std::count(keep.begin(), keep.end(), Keep::host));
}

std::vector<Keep> kept_by_layer(const std::vector<Keep>& keep, std::int64_t layers, int first_trained_unit) {
  SO_CHECK(keep.empty() || static_cast<std::int64_t>(keep.size()) == layers, "what {} of {} layers keep", keep.size(),
           layers);
  std::vector<Keep> kept = keep.empty() ? std::vector(static_cast<std::size_t>(layers), Keep::all) : keep;
  bool below = true;  // all layers so far, which have no backward pass
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    Keep& of_layer = kept[static_cast<std::size_t>(layer)];
    const bool has_backward = layer_unit(layer) >= first_trained_unit;
    if (!has_backward || (below && of_layer == Keep::nothing)) of_layer = Keep::input;
    below = !has_backward;
  }
  return kept;
}

std::vector<bool> remade_inputs(const std::vector<Keep>& kept) {
  std::size_t layers = kept.size();
  while (layers > 0 && kept[layers - 1] == Keep::nothing) --layers;  // which find theirs
  const auto begin = kept.begin(), end = begin + static_cast<std::ptrdiff_t>(layers);
  if (std::find(begin, end, Keep::nothing) == end) return {};
  std::vector<bool> units(kept.size() + 2, false);  // with the embedding and the head
  for (std::size_t layer = 0; layer < layers; ++layer)
    units[static_cast<std::size_t>(layer_unit(static_cast<std::int64_t>(layer)))] = kept[layer] == Keep::nothing;
  return units;
}

std::vector<Input> unit_inputs(const std::vector<Keep>& kept) {
  std::vector<Input> units(kept.size() + 2, Input::kept);
  const std::vector<bool> remade = remade_inputs(kept);
  for (std::size_t layer = 0; layer < kept.size(); ++layer) {
    const auto unit = static_cast<std::size_t>(layer_unit(static_cast<std::int64_t>(layer)));
    if (kept[layer] == Keep::host) units[unit] = Input::on_host;
    if (!remade.empty() && remade[unit]) units[unit] = Input::remade;
  }
  return units;
}

}  // namespace so
