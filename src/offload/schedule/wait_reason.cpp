#include "offload/schedule/wait_reason.h"

namespace so {

std::string_view name_of(WaitReason reason) {
  constexpr std::array<std::string_view, wait_reasons> names{"host",    "link",       "stream", "gradient",
                                                             "verdict", "checkpoint", "moving"};
  return names.at(static_cast<std::size_t>(reason));
}

std::string_view awaited(WaitReason reason) {
  constexpr std::array<std::string_view, wait_reasons> words{
      "AdamW on the host", "transfers",    "streamed or gathered weights", "a gradient buffer",
      "the gradient norm", "a checkpoint", "gradients that move"};
  return words.at(static_cast<std::size_t>(reason));
}

}  // namespace so
