// What LLaVA called its parts, and the classes of images and text that transformers stores as it does.
#include <array>

#include "model/families/family.h"

namespace so {

std::span<const TextNames> llava_text_names() {
  static constexpr std::array<TextNames, 2> names{{
      {.model = "language_model.model.", .lm_head = "language_model.lm_head."},
      {.model = "model.language_model.", .lm_head = "lm_head."},
  }};
  return names;
}

std::span<const std::string_view> llava_carried_names() {
  static constexpr std::array<std::string_view, 4> names{"vision_tower.", "multi_modal_projector.",
                                                         "model.vision_tower.", "model.multi_modal_projector."};
  return names;
}

}  // namespace so
