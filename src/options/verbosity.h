// How much a command says: the options --verbose and --quiet, which every command has.
#pragma once

#include "base/error.h"
#include "base/log.h"
#include "base/options.h"

namespace so {

// Rows for a struct with the members `verbose` and `quiet`.
template <class S>
void add_verbosity(OptionTable<S>& t) {
  t.group("Messages");
  t.add("verbose", &S::verbose, "Say everything: settings, memory by use, reasons for each choice")
      .default_from("this program");
  t.add("quiet", &S::quiet, "Say nothing but warnings and errors; results still go to standard output")
      .default_from("this program")
      .elsewhere("silent");
}

inline void apply_verbosity(bool verbose, bool quiet) {
  if (verbose && quiet) fail("--verbose and --quiet exclude each other: give one of them");
  set_log_level(quiet ? LogLevel::warning : verbose ? LogLevel::detail : LogLevel::info);
}

}  // namespace so
