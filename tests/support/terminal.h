// A program on a terminal of a given width, and what that shows: a pseudo-terminal and a small interpreter of what we
// write to one.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "support/process.h"

namespace so::test {

// Text, carriage return, line feed and "erase to the end of the line"; anything else is a failure. A line that is
// longer than the terminal is wide goes on in the next row, as on a real one, and is counted.
class Screen {
 public:
  explicit Screen(std::size_t columns) : columns_(columns) {}

  void feed(std::string_view bytes) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (bytes.substr(i).starts_with("\x1b[K")) {
        rows_[row_].resize(std::min(rows_[row_].size(), column_));
        i += 2;
      } else if (bytes[i] == '\r') {
        column_ = 0;
        ++returns_;
      } else if (bytes[i] == '\n') {
        next_row();
      } else if (static_cast<unsigned char>(bytes[i]) < 0x20) {
        throw std::runtime_error("the screen got control character " + std::to_string(bytes[i]));
      } else {
        put(bytes[i]);
      }
    }
  }

  const std::vector<std::string>& rows() const { return rows_; }
  int overflows() const { return overflows_; }  // characters that went on in the next row
  int returns() const { return returns_; }      // carriage returns, those of line ends included
  std::string text() const {
    std::string all;
    for (const std::string& row : rows_) all += row + "\n";
    return all;
  }

 private:
  void next_row() {
    if (++row_ == rows_.size()) rows_.emplace_back();
  }
  void put(char c) {
    if (column_ == columns_) {
      ++overflows_;
      next_row();
      column_ = 0;
    }
    std::string& row = rows_[row_];
    if (row.size() <= column_) row.resize(column_ + 1, ' ');
    row[column_++] = c;
  }

  std::size_t columns_, row_ = 0, column_ = 0;
  std::vector<std::string> rows_{""};
  int overflows_ = 0, returns_ = 0;
};

struct TerminalOutcome {
  int exit_code = -1;
  Screen screen;
};

// Runs the command with standard output and error on a terminal of so many columns; standard input is /dev/null.
inline TerminalOutcome run_on_terminal(const std::vector<std::string>& command, const std::filesystem::path& directory,
                                       std::size_t columns) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0) throw std::runtime_error("no pseudo-terminal");
  const int slave = ::open(::ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (slave < 0) throw std::runtime_error("the pseudo-terminal does not open");
  const winsize size{50, static_cast<unsigned short>(columns), 0, 0};
  if (::ioctl(slave, TIOCSWINSZ, &size) != 0) throw std::runtime_error("TIOCSWINSZ");
  TerminalOutcome outcome{-1, Screen(columns)};
  {
    Limits limits;
    limits.output = slave;
    Process process(command, directory, limits);
    ::close(slave);
    // A read fails with EIO when the program, the last that holds the other end, has gone.
    char buffer[4096];
    for (ssize_t n; (n = ::read(master, buffer, sizeof buffer)) > 0;)
      outcome.screen.feed({buffer, static_cast<std::size_t>(n)});
    outcome.exit_code = process.wait().exit_code;
  }
  ::close(master);
  return outcome;
}

}  // namespace so::test
