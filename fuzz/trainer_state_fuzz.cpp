// trainer_state.json from untrusted bytes: an Error, or a state that its own text gives again.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "checkpoint/trainer_state.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  so::TrainerState state;
  try {
    state = so::parse_trainer_state({reinterpret_cast<const char*>(data), size}, "state");
  } catch (const so::Error&) {
    return 0;
  }
  if (state.step < 0 || state.updates < 0 || state.updates > state.step || state.tokens < 0) __builtin_trap();
  const std::string text = so::to_json(state);
  if (so::to_json(so::parse_trainer_state(text, "again")) != text) __builtin_trap();
  return 0;
}
