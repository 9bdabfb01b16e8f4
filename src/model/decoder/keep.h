// The part of its forward pass that a layer keeps for backward.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "offload/schedule/placement.h"

namespace so {

// What a layer does not keep is computed again, to the same bits; each value keeps less than the one before and costs
// more time.
enum class Keep : std::uint8_t {
  all,    // but for what only products in FP8 read (product_input.h), which is made again with its codes
  light,  // not what memory-bound work remakes: the norms' outputs, q and k rotated after a qk-norm, the activated.
          // Experts' inputs and activations are never kept
  no_gate_up,  // nor the gate and up projections, whose matrix product is run again
  attention,   // only the layer's input and attention's output: projections are run again, and attention is not
  input,       // only the layer's input: all but the last product is run again
  host,        // the same in host memory (offload/memory/activation_store.h)
  nothing,     // not even its input: backward makes it again, by a forward pass from the last layer below that kept its
               // own. Where the last layer is such a one, the inputs of those in a row that it ends are still there
               // when backward begins
};
std::string_view name_of(Keep keep);
// Returns what each layer keeps if `keep` is asked for (empty: all of all layers). Layers below the first trained unit
// have no backward pass and count as Keep::input. The lowest layer with one keeps at least its input.
std::vector<Keep> kept_by_layer(const std::vector<Keep>& keep, std::int64_t layers, int first_trained_unit);
// For each unit, whether its input is made again in backward (offload/schedule/pass_order.h), given kept_by_layer();
// empty if none is.
std::vector<bool> remade_inputs(const std::vector<Keep>& kept);
// By unit, what backward finds of its input, given kept_by_layer().
std::vector<Input> unit_inputs(const std::vector<Keep>& kept);
// Counts the layers that keep their input in host memory, given what each layer keeps.
int kept_on_host(const std::vector<Keep>& keep);

}  // namespace so
