#include "data/chat/chat_renderer.h"

#include <array>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "data/python_process.h"
#include "data/python_programs.h"
#include "data/tokenizer/json_reader.h"

namespace so {
namespace {

std::string_view name_of(TrainedTurns trained) {
  constexpr std::array<std::string_view, 4> names = {"assistant", "last", "all", "nothing"};
  return names[static_cast<std::size_t>(trained)];
}

std::string setup_of(const ChatTemplate& chat) {
  nlohmann::json variables = nlohmann::json::object();
  for (const auto& [name, value] : chat.variables) variables[name] = value;
  const nlohmann::json setup{{"template", chat.text},
                             {"tool_template", chat.tool_text ? nlohmann::json(*chat.tool_text) : nlohmann::json()},
                             {"variables", variables},
                             {"special", chat.special_tokens},
                             {"stop", chat.stop_tokens},
                             {"now", chat.now ? nlohmann::json(*chat.now) : nlohmann::json()}};
  return setup.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

// Python processes that have the template.
struct ChatRenderer::Workers {
  std::unique_ptr<PythonProcess> take(const ChatTemplate& chat) {
    {
      const std::lock_guard lock(mutex);
      if (!idle.empty()) {
        auto worker = std::move(idle.back());
        idle.pop_back();
        return worker;
      }
    }
    return start(chat);
  }

  void put_back(std::unique_ptr<PythonProcess> worker) {
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(worker));
  }

  static std::unique_ptr<PythonProcess> start(const ChatTemplate& chat) {
    std::unique_ptr<PythonProcess> worker;
    try {
      worker = std::make_unique<PythonProcess>(chat_program(), setup_of(chat));
    } catch (const PythonMissing& missing) {
      fail("{}: chat templates are rendered by Jinja2, {}; install it (Debian and Ubuntu: apt install python3-jinja2)",
           chat.source, missing.what());
    } catch (const PythonRefused& refused) {
      fail("{}: {}", chat.source, refused.what());
    } catch (const ChildEnded& end) {
      fail("chat templates are rendered by Python, and {}", end.what());
    }
    simdjson::dom::parser parser;
    const JsonNode answer = parse_json(parser, worker->first_answer(), "python3's answer");
    if (const auto error = answer.find("error")) fail("{}: {}", chat.source, printable(error->string(), 500));
    return worker;
  }

  std::mutex mutex;
  std::vector<std::unique_ptr<PythonProcess>> idle;
};

std::string RenderedChat::text() const {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

std::vector<RenderedChat> parse_rendered(std::string_view json, std::size_t records) {
  simdjson::dom::parser parser;
  const std::string file = "python3's answer";
  const JsonNode root = parse_json(parser, json, file);
  const JsonNode list = root.at("records");
  std::vector<RenderedChat> rendered;
  for (const JsonElement element : list.array()) {
    const JsonNode node = list.element(element, rendered.size());
    RenderedChat& one = rendered.emplace_back();
    if (node.is_object() && node.find("error")) {
      one.error = node.at("error").string();
      if (one.error.empty()) one.error = "the chat template fails without a reason";
      continue;
    }
    const auto append = [](const JsonNode& texts, std::vector<std::string>& to) {
      std::size_t index = 0;
      for (const JsonElement text : texts.array()) to.emplace_back(texts.element(text, index++).string());
    };
    append(node.is_object() ? node.at("pieces") : node, one.pieces);
    if (!node.is_object()) continue;
    append(node.at("left_out"), one.left_out);
    append(node.at("roles"), one.roles);
  }
  if (rendered.size() != records) fail("{}: {} results for {} records", file, rendered.size(), records);
  return rendered;
}

ChatRenderer::ChatRenderer(ChatTemplate chat_template)
    : template_(std::move(chat_template)), workers_(std::make_unique<Workers>()) {}

ChatRenderer::~ChatRenderer() = default;

std::vector<RenderedChat> ChatRenderer::render(std::span<const std::string_view> records, TrainedTurns trained,
                                               bool add_generation_prompt) const {
  std::string request = fmt::format("{{\"train\":\"{}\",\"add_generation_prompt\":{},\"records\":[", name_of(trained),
                                    add_generation_prompt);
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (i > 0) request += ',';
    request += records[i];
  }
  request += "]}";
  auto worker = workers_->take(template_);
  std::string answer;
  try {
    answer = worker->ask(request);
  } catch (const ChildEnded& end) {  // the worker goes with its process
    fail("{}: the chat template cannot be rendered within its limits of time and memory: {}", template_.source,
         end.what());
  }
  workers_->put_back(std::move(worker));
  return parse_rendered(answer, records.size());
}

}  // namespace so
