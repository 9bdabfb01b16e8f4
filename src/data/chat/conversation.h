// Conversations that are to be answered.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/chat/chat_renderer.h"
#include "data/model_encoder.h"

namespace so {

struct ChatMessage {
  std::string role, content;
};

// The record of a conversation, as JSON.
std::string conversation_record(const std::vector<ChatMessage>& messages);

// The text that comes before the assistant's next turn. Throws Error if the template refuses it.
std::string conversation_text(const ChatRenderer& renderer, std::string_view record);
// The same, encoded. Throws Error if the template refuses it.
std::vector<std::int32_t> conversation_prompt(const ChatRenderer& renderer, const ModelEncoder& encoder,
                                              std::string_view record);

}  // namespace so
