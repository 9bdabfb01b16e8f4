// Reads the rows of Parquet and Arrow files as records. pyarrow does it, in a Python process beside this one: Debian
// has no C++ library for these formats, and Arrow's is larger than this program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/python_process.h"
#include "data/records.h"

namespace so {

bool is_table_name(const std::filesystem::path& path);  // *.parquet, *.arrow

// Python processes that read one file after another, since each takes half a second to start. They end with the last
// who shares this.
class TablePrograms {
 public:
  static std::shared_ptr<TablePrograms> shared();

  // Throws Error, for messages about `file`, where python3 or pyarrow is missing.
  std::unique_ptr<PythonProcess> take(const std::string& file);
  void put_back(std::unique_ptr<PythonProcess> program);

 private:
  std::mutex mutex_;
  std::unique_ptr<PythonProcess> idle_;
};

// One file, from its first row to its last. Every member throws Error with the file's name for one that is damaged or
// cut off, or has no columns that make records (those that it has are listed).
class TableReader {
 public:
  TableReader(const std::filesystem::path& file, std::shared_ptr<TablePrograms> programs);
  ~TableReader();
  TableReader(const TableReader&) = delete;
  TableReader& operator=(const TableReader&) = delete;

  // The next rows, at most `rows` and no more once they have `bytes`; false at the end. They view memory that holds
  // until the next call. From the second call on, the next block is read meanwhile.
  bool next(std::vector<RawRecord>& block, std::size_t rows, std::size_t bytes);

  std::uint64_t rows();                  // of the whole file; before the first next()
  double done() const { return done_; }  // how much of the file that was, 0 to 1
  const std::vector<std::string>& unread_columns() const { return unread_columns_; }

 private:
  void send(const std::string& request);
  std::string receive();

  const std::string name_;
  const std::shared_ptr<TablePrograms> programs_;
  std::unique_ptr<PythonProcess> program_;
  std::string block_;
  std::vector<std::string> unread_columns_;
  std::int64_t row_ = 0;
  double done_ = 0;
  bool begun_ = false, requested_ = false, ended_ = false;
};

}  // namespace so
