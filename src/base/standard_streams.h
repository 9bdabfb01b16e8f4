// The three standard streams as a program finds them: perhaps closed, full, or a pipe that nobody reads.
#pragma once

#include <stdexcept>
#include <string_view>

namespace so {

// Call first in main(). A standard descriptor that is closed is opened such that using it fails, so that no file opened
// later takes its number and receives messages meant for it. A broken pipe is then an error of write(), not a signal.
void prepare_standard_streams();

// Standard output is a pipe whose reader has gone, as that of `| head` does. Nobody wants the rest: no failure.
struct ReaderGone : std::runtime_error {
  ReaderGone() : std::runtime_error("standard output is closed") {}
};

// Writes the text at once, behind what standard output holds. An error is kept for flush_standard_output().
void write_standard_output(std::string_view text);

// Forgets errors so far, for output that is kept elsewhere too (a run's lines in run.log), so that its loss does not
// make the command fail.
void excuse_standard_output();

// Writes out what standard output holds. If anything written to it so far was lost, throws ReaderGone, or
// std::runtime_error with the system's reason; `known_error` is that reason (an errno value) if an earlier write met
// it.
void flush_standard_output(int known_error = 0);

}  // namespace so
