// One record of a data file as training sees it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "data/example.h"
#include "data/text_encoder.h"

namespace so {

struct OneRecord {
  std::string location;  // FILE:LINE, or FILE: row N
  RecordFormat format;
  Example example;
};

// The `number`th record, counted from 1; those before it are passed over unread. Throws Error as DatasetSource does,
// and if the file has fewer records.
OneRecord read_one_record(const std::filesystem::path& file, std::int64_t number, const TextEncoder& encoder,
                          const ExampleOptions& options);

}  // namespace so
