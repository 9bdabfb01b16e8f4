#include "data/chat/chat_renderer.h"

#include <array>
#include <charconv>
#include <mutex>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/child_process.h"
#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "data/chat/chat_program.h"
#include "data/tokenizer/json_reader.h"

namespace so {
namespace {

constexpr std::size_t max_answer_bytes = std::size_t{4} << 30;
constexpr int no_jinja = 3;  // chat_templates.py's exit code

std::string_view name_of(TrainedTurns trained) {
  constexpr std::array<std::string_view, 4> names = {"assistant", "last", "all", "nothing"};
  return names[static_cast<std::size_t>(trained)];
}

// One Python process that has the template.
class Worker {
 public:
  Worker(const std::string& python, const std::string& setup) : process_(command(python)) {
    process_.write(chat_program());
    send(setup);
    setup_answer_ = receive();
  }

  const std::string& setup_answer() const { return setup_answer_; }

  std::string ask(const std::string& request) {
    send(request);
    return receive();
  }

 private:
  // The program's text comes first on standard input: a command line shows neither it nor a file that must be found.
  // -I keeps the directory and the user's settings out of it.
  static std::vector<std::string> command(const std::string& python) {
    return {python, "-I", "-c",
            fmt::format("import sys;exec(compile(sys.stdin.buffer.read({}),'chat_templates.py','exec'))",
                        chat_program().size())};
  }

  void send(const std::string& message) {
    process_.write(fmt::format("{}\n", message.size()));
    process_.write(message);
  }

  std::string receive() {
    const std::string line = process_.read_line(20);
    std::size_t bytes = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), bytes);
    if (error != std::errc() || end != line.data() + line.size() || bytes > max_answer_bytes)
      throw ChildEnded("python3 gives no answer that can be read");
    std::string message(bytes, '\0');
    process_.read_exact(message);
    return message;
  }

  ChildProcess process_;
  std::string setup_answer_;
};

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

struct ChatRenderer::Workers {
  std::unique_ptr<Worker> take(const ChatTemplate& chat) {
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

  void put_back(std::unique_ptr<Worker> worker) {
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(worker));
  }

  // The first python3 in PATH may be that of an environment without Jinja2; Debian's package belongs to the system's.
  std::unique_ptr<Worker> start(const ChatTemplate& chat) {
    const std::string setup = setup_of(chat);
    bool found = false;
    for (const std::string python : {"python3", "/usr/bin/python3"}) {
      try {
        auto worker = std::make_unique<Worker>(python, setup);
        check(*worker, chat);
        return worker;
      } catch (const std::system_error& error) {
        if (error.code() != std::errc::no_such_file_or_directory) throw;
      } catch (const ChildEnded& end) {
        found = true;
        if (std::string_view(end.what()).find(fmt::format("exit code {}", no_jinja)) == std::string_view::npos)
          fail("chat templates are rendered by Python, and {}", end.what());
      }
    }
    fail("{}: chat templates are rendered by Jinja2, {}; install it (Debian and Ubuntu: apt install python3-jinja2)",
         chat.source, found ? "which python3 does not have" : "and there is no python3");
  }

  static void check(const Worker& worker, const ChatTemplate& chat) {
    simdjson::dom::parser parser;
    const JsonNode answer = parse_json(parser, worker.setup_answer(), "python3's answer");
    if (const auto error = answer.find("error")) fail("{}: {}", chat.source, printable(error->string(), 500));
  }

  std::mutex mutex;
  std::vector<std::unique_ptr<Worker>> idle;
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
    if (node.is_object()) {
      one.error = node.at("error").string();
      if (one.error.empty()) one.error = "the chat template fails without a reason";
      continue;
    }
    std::size_t index = 0;
    for (const JsonElement piece : node.array()) one.pieces.emplace_back(node.element(piece, index++).string());
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
    throw std::runtime_error(fmt::format("while a chat template was rendered, {}", end.what()));
  }
  workers_->put_back(std::move(worker));
  return parse_rendered(answer, records.size());
}

}  // namespace so
