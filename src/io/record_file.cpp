#include "io/record_file.h"

#include <unistd.h>

#include <optional>

#include "base/error.h"
#include "base/log.h"

namespace so {

void RecordWriter::append(File& file, std::string_view bytes) {
  std::optional<std::uint64_t> size;
  try {
    size = file.size();
    file.write_all(bytes);
    if (failing_) log_warning("{} can be written again; {} entries are missing", printable_path(file.path()), lost_);
    failing_ = false;
  } catch (const Error& error) {
    ++lost_;
    // Cuts off what a failed write left of the entry. If that fails too, the entry is damaged, which readers detect.
    if (size && ::ftruncate(file.descriptor(), static_cast<off_t>(*size)) != 0) size.reset();
    if (!failing_) log_error("{}: training goes on without this record, and ends with exit code 1", error.what());
    failing_ = true;
  }
}

}  // namespace so
