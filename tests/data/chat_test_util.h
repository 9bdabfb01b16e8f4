// Chat templates for tests: those that are published, with the tokens of their models, and their expected texts.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/chat/chat_renderer.h"
#include "data_test_util.h"
#include "support/paths.h"

namespace so::test {

using OrderedJson = nlohmann::ordered_json;  // templates show the order of keys
using Parts = std::vector<std::string>;

inline std::filesystem::path chat_fixtures() { return std::filesystem::path(fixtures()) / "chat"; }

inline OrderedJson read_chat_fixture(const std::string& name) {
  return OrderedJson::parse(read_file(chat_fixtures() / name));
}

inline ChatTemplate plain_template(std::string text) {
  ChatTemplate chat;
  chat.text = std::move(text);
  chat.source = "chat_template.jinja";
  chat.variables = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  chat.special_tokens = {"<s>", "</s>"};
  chat.stop_tokens = {"</s>"};
  return chat;
}

// `expected`: expected.json.
inline ChatTemplate published_template(const OrderedJson& expected, const std::string& name) {
  const OrderedJson& model = expected["templates"][name];
  ChatTemplate chat = plain_template(read_file(chat_fixtures() / "templates" / (name + ".jinja")));
  chat.variables.clear();
  for (const auto& [token, text] : model["variables"].items()) chat.variables.emplace_back(token, text);
  chat.special_tokens = model["special"];
  chat.stop_tokens = model["stop"];
  chat.now = expected["now"];
  return chat;
}

inline RenderedChat render_one(const ChatRenderer& renderer, const std::string& record,
                               TrainedTurns trained = TrainedTurns::assistant, bool prompt = false) {
  const std::string_view one = record;
  return renderer.render(std::span(&one, 1), trained, prompt).at(0);
}

inline Parts trained_in(const RenderedChat& chat) {
  Parts trained;
  for (std::size_t i = 1; i < chat.pieces.size(); i += 2) trained.push_back(chat.pieces[i]);
  return trained;
}

}  // namespace so::test
