// A program that runs beside this one and talks to it through pipes.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace so {

// Thrown where the other program has ended though more was expected of it.
class ChildEnded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Started by the constructor; its standard input and output are pipes to us. Its messages (standard error) are kept.
// Signals of the terminal do not reach it: it ends with its input, and the destructor kills what is left of it. It runs
// in the root directory and with the environment of program_path.h, so that nothing in the working directory is taken
// for a part of it: files that it is told of need absolute paths. To be used by one thread at a time. There is no
// deadlock as long as it reads a whole request before it writes its answer.
class ChildProcess {
 public:
  // `command`: the program, looked for in PATH unless it is a path (find_program()), and its arguments. Throws
  // std::system_error where it cannot be started; ENOENT: there is no such program.
  explicit ChildProcess(const std::vector<std::string>& command);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Throw ChildEnded, whose text has the program's name, how it ended and the end of its messages.
  void write(std::string_view text);
  void read_exact(std::span<char> bytes);
  // Up to a line end, which is left out. A line of more than `limit` bytes is ChildEnded too: it is no answer.
  std::string read_line(std::size_t limit);

  // Waits for its end and returns its exit code, or 128 and the number of the signal that ended it. Closes its input.
  int wait();

  // The last line of its messages so far, which of a traceback says what happened.
  std::string last_message() const;

 private:
  [[noreturn]] void ended();
  std::size_t read_some(char* to, std::size_t bytes);

  std::string name_;
  pid_t pid_ = -1;  // -1: it has been waited for
  int code_ = 0;
  int input_ = -1, output_ = -1, messages_ = -1;
  std::string read_ahead_;
};

// Runs a program to its end, with `variables` as its environment and otherwise as above, but that it has nothing to
// read and that all it says goes to our standard error. SIGINT, SIGTERM and SIGHUP that reach this process meanwhile
// are passed on to it, and when it has ended take effect here too. Returns its exit code, or 128 and the number of the
// signal that ended it. Throws std::system_error as the constructor. No other thread may run that takes these signals.
int run_to_its_end(const std::vector<std::string>& command, std::vector<std::string> variables);

}  // namespace so
