// A Python program of ours (python_programs.h) in a process beside this one, which answers requests.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/child_process.h"
#include "data/python_programs.h"

namespace so {

// No python3 has the modules of a program; the text goes on after "...," ("and there is no python3").
class PythonMissing : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Every python3 that has the modules of a program has them in a version that is refused; the text is one line that says
// which, why, and what to install.
class PythonRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A message is a line with a number of bytes, and then those bytes. To be used by one thread at a time; a request that
// is sent has to be read whole by the program before it answers.
class PythonProcess {
 public:
  static constexpr int no_module = 3;       // the exit code of a program that lacks a module
  static constexpr int refused_module = 4;  // and of one that may not use it (library_holes.py)

  // Starts the program with `first` as its first request, by the python3 of PATH or, where that does not have its
  // modules, by /usr/bin/python3: the first may be that of an environment, and Debian's packages belong to the
  // system's. Modules come from that Python's own directories alone: not from the working directory, from PYTHONPATH or
  // PYTHONHOME, or from what the user has installed for themselves (pip install --user). Throws PythonMissing or
  // PythonRefused where neither will do, ChildEnded where the program ends otherwise.
  PythonProcess(PythonProgram program, std::string_view first);

  const std::string& first_answer() const { return first_answer_; }

  // Throw ChildEnded.
  void send(std::string_view message);
  std::string receive();
  std::string ask(std::string_view request) {
    send(request);
    return receive();
  }

 private:
  std::unique_ptr<ChildProcess> process_;
  std::string first_answer_;
};

}  // namespace so
