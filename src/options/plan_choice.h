// The decisions of a plan, as names for people.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace so {

enum class PlanChoice : std::uint8_t {
  none,
  split,        // which optimizer state the device owns
  residency,    // which weights and gradients are not kept on the device
  streaming,    // how many units' weights stream
  gathering,    // of how many units each of several ranks has slices alone
  activations,  // what layers keep for backward
  spare,        // places for new state
  cast,         // where bf16 and fp32 are changed into each other
};
std::span<const PlanChoice> plan_choices();  // all but none
std::string_view name_of(PlanChoice choice);

}  // namespace so
