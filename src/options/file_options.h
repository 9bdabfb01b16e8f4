// Options of the commands that look after files on disk: verify and cache. Their tables are in file_options.cpp.
#pragma once

#include <cstdint>
#include <string>

#include "base/options.h"

namespace so {

struct VerifyOptions {
  std::string dir;
  bool json = false;
  bool verbose = false, quiet = false;
};

struct CacheOptions {
  std::string cache_dir;
  bool prune = false;
  bool all = false;
  double older_than = -1;      // days; negative: of any age
  std::int64_t max_size = -1;  // bytes; negative: of any size
  bool json = false;
  bool verbose = false, quiet = false;
};

const OptionTable<VerifyOptions>& verify_option_table();
const OptionTable<CacheOptions>& cache_option_table();

// Refuse what no single row can.
void check_options(const VerifyOptions& options, const OptionOrigins& origins);
void check_options(const CacheOptions& options, const OptionOrigins& origins);

}  // namespace so
