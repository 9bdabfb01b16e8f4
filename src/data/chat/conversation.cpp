#include "data/chat/conversation.h"

#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"

namespace so {

std::string conversation_record(const std::vector<ChatMessage>& messages) {
  nlohmann::ordered_json record{{"messages", nlohmann::ordered_json::array()}};
  for (const ChatMessage& message : messages)
    record["messages"].push_back({{"role", message.role}, {"content", message.content}});
  // A terminal need not give UTF-8.
  return record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string conversation_text(const ChatRenderer& renderer, std::string_view record) {
  const RenderedChat rendered = renderer.render(std::span(&record, 1), TrainedTurns::nothing, true).at(0);
  if (!rendered.error.empty()) fail("{}", rendered.error);
  return rendered.text();
}

std::vector<std::int32_t> conversation_prompt(const ChatRenderer& renderer, const ModelEncoder& encoder,
                                              std::string_view record) {
  return encoder.encode(conversation_text(renderer, record), false);
}

}  // namespace so
