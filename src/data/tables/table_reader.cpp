#include "data/tables/table_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "data/python_programs.h"
#include "data/record_keys.h"
#include "data/tokenizer/json_reader.h"

namespace so {
namespace {

// A name may have bytes that no JSON has.
std::string hexadecimal(std::string_view bytes) {
  std::string digits;
  for (const char c : bytes) digits += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return digits;
}

std::string_view after_line(std::string_view text) {
  text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  return text;
}

JsonNode head_of(simdjson::dom::parser& parser, std::string_view answer) {
  static const std::string from = "python3's answer";
  return parse_json(parser, answer.substr(0, answer.find('\n')), from);
}

}  // namespace

bool is_table_name(const std::filesystem::path& path) {
  const auto extension = path.extension();
  return extension == ".parquet" || extension == ".arrow";
}

std::shared_ptr<TablePrograms> TablePrograms::shared() {
  static std::mutex mutex;
  static std::weak_ptr<TablePrograms> current;
  const std::lock_guard lock(mutex);
  auto programs = current.lock();
  if (!programs) current = programs = std::make_shared<TablePrograms>();
  return programs;
}

std::unique_ptr<PythonProcess> TablePrograms::take(const std::string& file) {
  {
    const std::lock_guard lock(mutex_);
    if (idle_) return std::move(idle_);
  }
  try {
    return std::make_unique<PythonProcess>(table_program(), "{}");
  } catch (const PythonMissing& missing) {
    fail(
        "{}: Parquet and Arrow files are read by pyarrow, {}; install it into an environment: python3 -m venv ENV && "
        "ENV/bin/pip install pyarrow, and ENV/bin first in PATH (what was installed with pip's --user, or is named by "
        "PYTHONPATH, is not used)",
        file, missing.what());
  } catch (const PythonRefused& refused) {
    fail("{}: {}", file, refused.what());
  } catch (const ChildEnded& end) {
    fail("{}: Parquet and Arrow files are read by Python, and {}", file, end.what());
  }
}

void TablePrograms::put_back(std::unique_ptr<PythonProcess> program) {
  const std::lock_guard lock(mutex_);
  idle_ = std::move(program);
}

TableReader::TableReader(const std::filesystem::path& file, std::shared_ptr<TablePrograms> programs)
    : name_(file.string()), programs_(std::move(programs)), program_(programs_->take(name_)) {
  send(fmt::format(R"({{"open":"{}","keys":["{}"]}})", hexadecimal(std::filesystem::absolute(file).native()),
                   fmt::join(keys_with_meaning(), "\",\"")));
  const std::string answer = receive();
  simdjson::dom::parser parser;
  const JsonNode columns = head_of(parser, answer).at("unread");
  std::size_t index = 0;
  for (const JsonElement column : columns.array())
    unread_columns_.emplace_back(columns.element(column, index++).string());
}

TableReader::~TableReader() {
  if (program_ && !requested_) programs_->put_back(std::move(program_));
}

void TableReader::send(const std::string& request) {
  try {
    program_->send(request);
  } catch (const ChildEnded& end) {
    program_.reset();
    fail("{}: while the file was read, {}", name_, end.what());
  }
}

std::string TableReader::receive() {
  std::string answer;
  try {
    answer = program_->receive();
  } catch (const ChildEnded& end) {
    program_.reset();
    fail("{}: while the file was read, {}", name_, end.what());
  }
  simdjson::dom::parser parser;
  const JsonNode head = head_of(parser, answer);
  if (const auto error = head.find("error")) fail("{}: {}", name_, printable(error->string(), 2000));
  if (const auto done = head.find("done")) done_ = done->number();
  return answer;
}

std::uint64_t TableReader::rows() {
  SO_CHECK(!begun_, "rows() after next()");
  send(R"({"count":true})");
  simdjson::dom::parser parser;
  return static_cast<std::uint64_t>(head_of(parser, receive()).at("rows").number());
}

bool TableReader::next(std::vector<RawRecord>& block, std::size_t rows, std::size_t bytes) {
  block.clear();
  if (ended_) return false;
  const std::string request = fmt::format(R"({{"rows":{},"bytes":{}}})", rows, bytes);
  if (!requested_) send(request);
  requested_ = false;
  block_ = receive();
  std::string_view rest = after_line(block_);
  while (!rest.empty()) {
    const std::size_t length = std::min(rest.find('\n'), rest.size());
    RawRecord record;
    record.row = row_++;
    record.json = rest.substr(0, length);
    if (length > RecordReader::kMaxRecordBytes)
      fail("{}: the record has more than {} bytes; split it", location_of(name_, record),
           RecordReader::kMaxRecordBytes);
    block.push_back(record);
    rest = after_line(rest);
  }
  ended_ = block.empty();
  if (begun_ && !ended_) {
    send(request);
    requested_ = true;
  }
  begun_ = true;
  return !ended_;
}

}  // namespace so
