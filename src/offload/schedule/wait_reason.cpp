#include "offload/schedule/wait_reason.h"

namespace so {

std::string_view name_of(WaitReason reason) {
  constexpr std::array<std::string_view, wait_reasons> names{"host", "link", "stream", "gradient", "verdict"};
  return names.at(static_cast<std::size_t>(reason));
}

}  // namespace so
