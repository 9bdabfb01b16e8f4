#include "data/python_process.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>
#include <utility>
#include <vector>

namespace so {
namespace {

constexpr std::size_t max_answer_bytes = std::size_t{4} << 30;

// The modules' text comes first on standard input: a command line shows neither it nor a file that must be found. -I
// (isolated) keeps out the working directory and all that the user's environment says, before Python imports anything.
std::vector<std::string> command(const std::string& python, PythonProgram program) {
  std::string script = "import sys, types\n";
  for (const PythonModule& module : program) {
    const bool last = &module == &program.back();
    if (!last) script += fmt::format("{0} = sys.modules['{0}'] = types.ModuleType('{0}')\n", module.name);
    script += fmt::format("exec(compile(sys.stdin.buffer.read({}), '{}.py', 'exec'){})\n", module.text.size(),
                          module.name, last ? "" : fmt::format(", {}.__dict__", module.name));
  }
  return {python, "-I", "-c", std::move(script)};
}

}  // namespace

PythonProcess::PythonProcess(PythonProgram program, std::string_view first) {
  bool found = false;
  std::string refusal;
  for (const std::string python : {"python3", "/usr/bin/python3"}) {
    try {
      process_ = std::make_unique<ChildProcess>(command(python, program));
      for (const PythonModule& module : program) process_->write(module.text);
      first_answer_ = ask(first);
      return;
    } catch (const std::system_error& error) {
      if (error.code() != std::errc::no_such_file_or_directory) throw;
    } catch (const ChildEnded&) {
      found = true;
      const int code = process_->wait();
      if (code != no_module && code != refused_module) throw;
      if (code == refused_module && refusal.empty()) refusal = process_->last_message();
    }
  }
  if (!refusal.empty()) throw PythonRefused(refusal);
  throw PythonMissing(found ? "which python3 does not have" : "and there is no python3");
}

void PythonProcess::send(std::string_view message) {
  process_->write(fmt::format("{}\n", message.size()));
  process_->write(message);
}

std::string PythonProcess::receive() {
  const std::string line = process_->read_line(20);
  std::size_t bytes = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), bytes);
  if (error != std::errc() || end != line.data() + line.size() || bytes > max_answer_bytes)
    throw ChildEnded("python3 gives no answer that can be read");
  std::string message(bytes, '\0');
  process_->read_exact(message);
  return message;
}

}  // namespace so
