// One record of a run's data as training sees it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "data/example.h"
#include "data/record_notes.h"
#include "data/text_encoder.h"

namespace so {

struct OneRecord {
  std::string location;  // FILE:LINE, or FILE: row N
  RecordFormat format;
  std::vector<Example> documents;  // one, or those of a row that another program packed
  RecordNotes notes;
};

// The `number`th record of the files together, counted from 1; those before it are passed over unread. Throws Error as
// DatasetSource does, and if there are fewer records.
OneRecord read_one_record(std::span<const std::filesystem::path> files, std::int64_t number, const TextEncoder& encoder,
                          const ExampleOptions& options);

}  // namespace so
