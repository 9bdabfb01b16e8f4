// From exceptions to exit codes.
#pragma once

#include <functional>
#include <string>

namespace so {

// Runs `body` and returns its exit code. If it throws, `message` gets the one line for standard error, without the line
// end, and the code is that of the exception's kind (ExitCode in commands/command.h).
int run_guarded(const std::function<int()>& body, std::string& message);

}  // namespace so
