// Options of the commands that look after files on disk: verify and cache. Their tables are in file_options.cpp.
#pragma once

#include <string>

#include "base/options.h"

namespace so {

struct VerifyOptions {
  std::string dir;
  bool json = false;
  bool verbose = false, quiet = false;
};

const OptionTable<VerifyOptions>& verify_option_table();

// Refuse what no single row can.
void check_options(const VerifyOptions& options, const OptionOrigins& origins);

}  // namespace so
