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

// The prompt for the assistant's next turn, rendered and encoded. Throws Error if the template refuses it.
std::vector<std::int32_t> conversation_prompt(const ChatRenderer& renderer, const ModelEncoder& encoder,
                                              std::string_view record);

}  // namespace so
