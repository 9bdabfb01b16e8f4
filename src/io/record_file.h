// Appending to a record that a run keeps of itself and can go on without.
#pragma once

#include <string_view>

#include "base/file.h"

namespace so {

// Reports a failing write once, loudly, instead of throwing. What is appended is in the file whole or not at all, so
// that a disk that was full for a while leaves a gap and no damage.
class RecordWriter {
 public:
  void append(File& file, std::string_view bytes);
  bool lost_any() const { return lost_ > 0; }

 private:
  long long lost_ = 0;
  bool failing_ = false;
};

}  // namespace so
