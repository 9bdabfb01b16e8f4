#include "offload/schedule/host_time.h"

namespace so {

std::string_view name_of(HostTime time) {
  constexpr std::array<std::string_view, host_times> names{"adamw", "other",   "gradient", "fetch",
                                                           "place", "verdict", "send",     "checkpoint"};
  return names.at(static_cast<std::size_t>(time));
}

std::string_view described(HostTime time) {
  constexpr std::array<std::string_view, host_times> words{"AdamW",
                                                           "other work",
                                                           "gradients",
                                                           "transfers of gradients",
                                                           "spare optimizer state",
                                                           "the gradient norm",
                                                           "transfers of weights",
                                                           "a checkpoint"};
  return words.at(static_cast<std::size_t>(time));
}

}  // namespace so
