// A data file, of whichever form: JSON, which is read here (records.h), or a Parquet or Arrow table, which pyarrow
// reads in a Python process beside this one (tables/table_reader.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/records.h"

namespace so {

class TablePrograms;

// A file's records from the first to the last, block by block. Memory is a block's, whatever the file's size.
class RecordBlocks {
 public:
  virtual ~RecordBlocks() = default;

  // Replaces `block` with the next records, at most a few thousand and about 16 MB (one record may be larger), and
  // returns true; false at the end. The first block has one record, for who looks at that only. They view memory that
  // holds until the next call. Throws Error where the file cannot be read on.
  virtual bool next(std::vector<RawRecord>& block) = 0;
  // How much of the file that was, 0 to 1.
  virtual double done() const = 0;
  // A table's columns that are no keys of its records.
  virtual std::vector<std::string> unread_columns() const { return {}; }
};

class DataFile {
 public:
  // Maps the file. Throws Error where it is not there, or is a pointer of Git LFS where a table should be.
  explicit DataFile(const std::filesystem::path& path);
  ~DataFile();

  const std::string& name() const { return name_; }  // for messages
  const MappedFile& content() const { return file_; }
  bool is_table() const { return programs_ != nullptr; }

  // From its beginning. Throws Error for a table where python3 or pyarrow is missing, and for one without columns that
  // make records.
  std::unique_ptr<RecordBlocks> records() const;

  // How many rows a table has; not for JSON.
  std::uint64_t table_rows() const;

 private:
  const std::filesystem::path path_;
  const std::string name_;
  const MappedFile file_;
  const std::shared_ptr<TablePrograms> programs_;  // of a table
};

}  // namespace so
