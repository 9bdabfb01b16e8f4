#include "base/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/program_path.h"

namespace so {
namespace {

void close_descriptor(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "a pipe");
    read = ends[0];
    write = ends[1];
  }
  ~Pipe() {
    close_descriptor(read);
    close_descriptor(write);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int read = -1, write = -1;
};

// Its own process group, no signal held back, and none ignored that we ignore; and the root directory.
class SpawnSettings {
 public:
  SpawnSettings(int input, int output, int messages) {
    ::posix_spawn_file_actions_init(&files_);
    ::posix_spawn_file_actions_adddup2(&files_, input, STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&files_, output, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&files_, messages, STDERR_FILENO);
    ::posix_spawn_file_actions_addchdir_np(&files_, "/");
    ::posix_spawnattr_init(&attributes_);
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    for (const int signal : {SIGPIPE, SIGINT, SIGTERM, SIGALRM}) sigaddset(&defaults, signal);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &defaults);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&files_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  const posix_spawn_file_actions_t* files() const { return &files_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t files_{};
  posix_spawnattr_t attributes_{};
};

// Throws std::system_error where the program cannot be started.
pid_t spawn(const std::vector<std::string>& command, const SpawnSettings& settings,
            std::vector<std::string> variables) {
  const std::optional<std::filesystem::path> program = find_program(command.at(0));
  if (!program) throw std::system_error(ENOENT, std::generic_category(), command[0]);
  std::vector<std::string> words = command;
  // Python looks for its library beside the program that it was started as, in PATH if that is no path.
  words[0] = program->string();
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, program->c_str(), settings.files(), settings.attributes(),
                                  pointers_to(words).data(), pointers_to(variables).data());
  if (error != 0) throw std::system_error(error, std::generic_category(), command[0]);
  return pid;
}

int exit_code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

// Signals that end a program and are not ignored, held back in this thread to be waited for, and a child's end.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&held_);
    sigaddset(&held_, SIGCHLD);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction action {};
      if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(&held_, signal);
    }
    ::pthread_sigmask(SIG_BLOCK, &held_, &before_);
  }
  ~HeldSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // The next of them, or 0 after a second.
  int wait() const {
    constexpr timespec second{1, 0};
    const int signal = ::sigtimedwait(&held_, nullptr, &second);
    return signal < 0 || signal == SIGCHLD ? 0 : signal;
  }

 private:
  sigset_t held_{}, before_{};
};

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command) : name_(command.at(0)) {
  Pipe requests, answers;
  messages_ = ::memfd_create("messages", MFD_CLOEXEC);
  if (messages_ < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  try {
    pid_ = spawn(command, SpawnSettings(requests.read, answers.write, messages_), environment_of_programs());
  } catch (...) {
    close_descriptor(messages_);
    throw;
  }
  input_ = std::exchange(requests.write, -1);
  output_ = std::exchange(answers.read, -1);
}

ChildProcess::~ChildProcess() {
  close_descriptor(input_);
  close_descriptor(output_);
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
  }
  close_descriptor(messages_);
}

void ChildProcess::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t bytes = ::write(input_, text.data(), text.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) ended();
    text.remove_prefix(static_cast<std::size_t>(bytes));
  }
}

std::size_t ChildProcess::read_some(char* to, std::size_t bytes) {
  while (true) {
    const ssize_t read = ::read(output_, to, bytes);
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) ended();
    return static_cast<std::size_t>(read);
  }
}

void ChildProcess::read_exact(std::span<char> bytes) {
  const std::size_t ahead = std::min(read_ahead_.size(), bytes.size());
  std::memcpy(bytes.data(), read_ahead_.data(), ahead);
  read_ahead_.erase(0, ahead);
  for (std::size_t at = ahead; at < bytes.size();) at += read_some(bytes.data() + at, bytes.size() - at);
}

std::string ChildProcess::read_line(std::size_t limit) {
  while (true) {
    const std::size_t end = read_ahead_.find('\n');
    if (end != std::string::npos) {
      std::string line = read_ahead_.substr(0, end);
      read_ahead_.erase(0, end + 1);
      return line;
    }
    if (read_ahead_.size() > limit) throw ChildEnded(fmt::format("{} gives no answer that can be read", name_));
    std::array<char, 4096> piece;
    read_ahead_.append(piece.data(), read_some(piece.data(), piece.size()));
  }
}

int ChildProcess::wait() {
  close_descriptor(input_);
  if (pid_ > 0) {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) continue;
    pid_ = -1;
    code_ = exit_code_of(status);
  }
  return code_;
}

void ChildProcess::ended() {
  const int code = wait();
  std::string text = code > 128 ? fmt::format("{} was ended by signal {}", name_, code - 128)
                                : fmt::format("{} ended with exit code {}", name_, code);
  if (code == 128 + SIGKILL) text += " (if nobody sent it: memory was short, and the kernel's log says so)";
  if (const std::string message = last_message(); !message.empty()) text += fmt::format(": {}", message);
  throw ChildEnded(text);
}

std::string ChildProcess::last_message() const {
  constexpr off_t kept = 1000;
  std::array<char, kept> said;
  const off_t size = ::lseek(messages_, 0, SEEK_END);
  const ssize_t bytes = ::pread(messages_, said.data(), said.size(), std::max<off_t>(0, size - kept));
  std::string_view message(said.data(), bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  while (!message.empty() && message.back() == '\n') message.remove_suffix(1);
  if (const std::size_t line = message.rfind('\n'); line != std::string_view::npos) message.remove_prefix(line + 1);
  return printable(message, kept);
}

int run_to_its_end(const std::vector<std::string>& command, std::vector<std::string> variables) {
  Pipe nothing;
  close_descriptor(nothing.write);
  int status = 0, received = 0;
  {
    const HeldSignals signals;
    const pid_t pid = spawn(command, SpawnSettings(nothing.read, STDERR_FILENO, STDERR_FILENO), std::move(variables));
    while (true) {
      const pid_t ended = ::waitpid(pid, &status, WNOHANG);
      if (ended == pid || (ended < 0 && errno != EINTR)) break;
      if (const int signal = signals.wait(); signal != 0) {
        received = signal;
        ::kill(pid, signal);
      }
    }
  }
  if (received != 0) ::raise(received);
  return exit_code_of(status);
}

}  // namespace so
