// Runs a program as a user would: its own process, arguments, exit status, what it printed.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/safetensors_reader.h"

namespace so::test {

struct Outcome {
  int exit_code = -1;  // of a process that exited, else -1
  int signal = 0;      // that ended it, else 0
  std::string out;
  std::string err;
};

// Whether the loader ended it before any line of the program ran: where its libraries, CUDA's above all, need more than
// a limit leaves.
inline bool ended_by_loader(const Outcome& outcome) {
  return outcome.exit_code == 127 && outcome.err.find("error while loading shared libraries") != std::string::npos;
}

struct Resource {
  int name;  // RLIMIT_AS, RLIMIT_STACK, ...
  std::uint64_t most;
};

struct Limits {
  std::optional<std::filesystem::path> directory = {};  // to run in, else this process's
  std::optional<std::uint64_t> file_bytes = {};         // largest file it may write; beyond it write() fails with EFBIG
  std::vector<Resource> resources = {};                 // as `ulimit` sets them
  std::optional<unsigned> user = {};                    // to run as, which only root may ask
  std::vector<int> ignored_signals = {};                // as nohup leaves SIGHUP
  int output = -1;  // a descriptor for its standard output and error, instead of files
};

// A running program. Its output goes to files, so it never waits for a reader. Signals have their default effects in
// it, whatever the test was started with.
class Process {
 public:
  // `directory` holds the two output files and must outlive this.
  Process(const std::vector<std::string>& command, const std::filesystem::path& directory, const Limits& limits = {})
      : out_(directory / "stdout.txt"), err_(directory / "stderr.txt") {
    std::vector<char*> argv;
    for (const std::string& a : command) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    const std::string out = out_.string(), err = err_.string(), in = limits.directory ? limits.directory->string() : "";
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ != 0) return;
    // In the child only calls that are safe after fork. An ignored signal stays ignored across exec: exceeding the
    // file size is then an error of write(), as a full disk is.
    if (limits.file_bytes) {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{*limits.file_bytes, *limits.file_bytes};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU, SIGPIPE}) ::signal(signal, SIG_DFL);
    for (const int signal : limits.ignored_signals) ::signal(signal, SIG_IGN);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    const int in_fd = ::open("/dev/null", O_RDONLY);
    const int out_fd = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    const int err_fd = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::dup2(in_fd, 0);
    ::dup2(limits.output < 0 ? out_fd : limits.output, 1);
    ::dup2(limits.output < 0 ? err_fd : limits.output, 2);
    if (!in.empty() && ::chdir(in.c_str()) != 0) ::_exit(126);
    for (const Resource& resource : limits.resources) {
      const rlimit limit{resource.most, resource.most};
      ::setrlimit(static_cast<__rlimit_resource>(resource.name), &limit);
    }
    if (limits.user && (::setgid(*limits.user) != 0 || ::setuid(*limits.user) != 0)) ::_exit(126);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ~Process() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) {
    if (pid_ > 0) ::kill(pid_, signal);
  }

  // True once it has ended; never blocks.
  bool ended() {
    if (pid_ > 0 && ::waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = 0;
    return pid_ == 0;
  }

  // Waits for its end; a process that is still alive after the limit is killed and reported. The limit is there to end
  // a hang, not to measure: it is just below that of ctest.
  Outcome wait(std::chrono::seconds limit = std::chrono::minutes(9)) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!ended()) {
      if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("the program hangs");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    Outcome o;
    if (WIFEXITED(status_)) o.exit_code = WEXITSTATUS(status_);
    if (WIFSIGNALED(status_)) o.signal = WTERMSIG(status_);
    o.out = read_file(out_);
    o.err = read_file(err_);
    return o;
  }

 private:
  std::filesystem::path out_, err_;
  pid_t pid_ = 0;  // 0 once it has been waited for
  int status_ = 0;
};

inline Outcome run(const std::vector<std::string>& command, const std::filesystem::path& directory,
                   const Limits& limits = {}) {
  return Process(command, directory, limits).wait();
}

}  // namespace so::test
