// The end of a program that cannot go on.
#pragma once

namespace so {

// For exceptions that no handler can catch, as those of a thread under a tight limit on memory: one line on standard
// error and an exit code as run_guarded() gives it, in place of SIGABRT.
void install_terminate_handler();

}  // namespace so
