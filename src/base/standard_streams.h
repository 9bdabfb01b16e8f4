// The three standard streams as a program finds them: perhaps closed, full, or a pipe that nobody reads.
#pragma once

namespace so {

// Call first in main(). A standard descriptor that is closed is opened such that using it fails, so that no file opened
// later takes its number and receives messages meant for it. A broken pipe is then an error of write(), not a signal.
void prepare_standard_streams();

// Writes out what standard output holds. Throws std::runtime_error with the system's reason if anything written to it
// so far was lost; `known_error` is that reason (an errno value) if an earlier write met it.
void flush_standard_output(int known_error = 0);

}  // namespace so
