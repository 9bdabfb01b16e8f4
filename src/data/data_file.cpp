#include "data/data_file.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/file_system.h"
#include "data/tables/table_reader.h"

namespace so {
namespace {

constexpr std::size_t kBlockRecords = 4096;
constexpr std::size_t kBlockBytes = std::size_t{16} << 20;

class JsonBlocks : public RecordBlocks {
 public:
  JsonBlocks(const std::string& name, const MappedFile& file) : file_(file), reader_(name, file.text()) {}
  ~JsonBlocks() override { pass(); }

  bool next(std::vector<RawRecord>& block) override {
    block.clear();
    pass();
    const std::size_t most = std::exchange(begun_, true) ? kBlockRecords : 1;
    std::size_t bytes = 0;
    for (RawRecord record; block.size() < most && bytes < kBlockBytes && reader_.next(record);) {
      block.push_back(record);
      bytes += record.json.size();
    }
    return !block.empty();
  }

  double done() const override {
    return file_.size() == 0 ? 1 : static_cast<double>(reader_.offset()) / static_cast<double>(file_.size());
  }

 private:
  // The block before was the last use of that part of the file.
  void pass() {
    file_.give_back(file_.bytes().subspan(passed_, reader_.offset() - passed_));
    passed_ = reader_.offset();
  }

  const MappedFile& file_;
  RecordReader reader_;
  std::size_t passed_ = 0;
  bool begun_ = false;
};

class TableBlocks : public RecordBlocks {
 public:
  explicit TableBlocks(std::unique_ptr<TableReader> reader) : reader_(std::move(reader)) {}

  bool next(std::vector<RawRecord>& block) override {
    return reader_->next(block, std::exchange(begun_, true) ? kBlockRecords : 1, kBlockBytes);
  }
  double done() const override { return reader_->done(); }
  std::vector<std::string> unread_columns() const override { return reader_->unread_columns(); }

 private:
  std::unique_ptr<TableReader> reader_;
  bool begun_ = false;
};

// The first bytes tell. A file that is named like a table and begins otherwise is refused.
bool holds_table(const std::filesystem::path& path, std::string_view content) {
  constexpr std::array<std::string_view, 4> beginnings = {"PAR1", "PARE", "ARROW1", "\xff\xff\xff\xff"};
  return is_table_name(path) || std::any_of(beginnings.begin(), beginnings.end(),
                                            [&](std::string_view begin) { return content.starts_with(begin); });
}

}  // namespace

DataFile::DataFile(const std::filesystem::path& path)
    : path_(path),
      name_(path.string()),
      file_(path),
      programs_(holds_table(path, file_.text()) ? TablePrograms::shared() : nullptr) {
  if (is_table()) refuse_lfs_pointer(path);
  file_.advise(MappedFile::Advice::sequential);
}

DataFile::~DataFile() = default;

std::unique_ptr<RecordBlocks> DataFile::records() const {
  if (!is_table()) return std::make_unique<JsonBlocks>(name_, file_);
  return std::make_unique<TableBlocks>(std::make_unique<TableReader>(path_, programs_));
}

std::uint64_t DataFile::table_rows() const { return TableReader(path_, programs_).rows(); }

}  // namespace so
