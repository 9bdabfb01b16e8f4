// Child processes for tests: to be killed, or to be confined in ways that the test program itself could not undo.
// Children do not use gtest and leave with _exit().
#pragma once

#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <exception>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>

namespace so::io_test {

// Runs `body` in a child process and gives back the text it returned, or "threw: <message>".
inline std::string run_in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child == 0) {
    std::string text;
    try {
      text = body();
    } catch (const std::exception& error) {
      text = std::string("threw: ") + error.what();
    }
    const bool sent = ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(sent ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    text += " (the child died, status " + std::to_string(status) + ")";
  return text;
}

// Starts `body`, which does not end, in a child process and kills that with SIGKILL `microseconds` after it began,
// wherever it is then. False if the child had ended by itself: the test is at fault.
inline bool kill_child_after(int microseconds, const std::function<void()>& body) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child == 0) {
    const bool began = ::write(ends[1], "b", 1) == 1;
    try {
      if (began) body();
    } catch (...) {
    }
    ::_exit(1);
  }
  ::close(ends[1]);
  char byte;
  const bool began = ::read(ends[0], &byte, 1) == 1;
  ::usleep(static_cast<useconds_t>(microseconds));
  ::kill(child, SIGKILL);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return began && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

// The number of a process that is no more.
inline int dead_process() {
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

// For children: from here on the system call `number` fails with `error`; with `argument` >= 0 only when that argument
// is not zero. Stands in for file systems that lack an operation. False where the kernel does not let us.
inline bool deny_system_call(int number, int error, int argument = -1) {
  const auto low_word = [](int i) {
    return static_cast<unsigned>(offsetof(seccomp_data, args) + 8u * static_cast<unsigned>(i));
  };
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument < 0 ? 0u : low_word(argument)),
      // Without an argument the word loaded is the call's number: not zero unless it is read(), which nobody denies.
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{sizeof program / sizeof program[0], program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// For children: an empty memory file system of `bytes` on `directory`, seen by the child alone. False where the kernel
// does not let us (neither root nor user namespaces).
inline bool mount_small_file_system(const std::filesystem::path& directory, std::size_t bytes) {
  const int spaces = CLONE_NEWNS | (::geteuid() == 0 ? 0 : CLONE_NEWUSER);
  if (::unshare(spaces) != 0) return false;
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  return ::mount("tmpfs", directory.c_str(), "tmpfs", 0, ("size=" + std::to_string(bytes)).c_str()) == 0;
}

// For children: without root, so that permission bits count.
inline bool become_unprivileged() {
  if (::geteuid() != 0) return true;
  return ::setgroups(0, nullptr) == 0 && ::setgid(65534) == 0 && ::setuid(65534) == 0;
}

}  // namespace so::io_test
