// Parsing and checking of the safetensors JSON header.
#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "io/json_events.h"
#include "io/safetensors.h"

namespace so {
namespace {

struct DTypeRow {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;  // empty: a dtype of the format that the engine does not have
};

constexpr std::array<DTypeRow, 22> dtype_rows{{
    {"F32", 32, DType::f32},          {"BF16", 16, DType::bf16},    {"F16", 16, DType::f16},
    {"I32", 32, DType::i32},          {"I64", 64, DType::i64},      {"U8", 8, DType::u8},
    {"BOOL", 8, std::nullopt},        {"I8", 8, std::nullopt},      {"I16", 16, std::nullopt},
    {"U16", 16, std::nullopt},        {"U32", 32, std::nullopt},    {"U64", 64, std::nullopt},
    {"F64", 64, std::nullopt},        {"C64", 64, std::nullopt},    {"F8_E4M3", 8, std::nullopt},
    {"F8_E5M2", 8, std::nullopt},     {"F8_E8M0", 8, std::nullopt}, {"F8_E4M3FNUZ", 8, std::nullopt},
    {"F8_E5M2FNUZ", 8, std::nullopt}, {"F6_E2M3", 6, std::nullopt}, {"F6_E3M2", 6, std::nullopt},
    {"F4", 4, std::nullopt},
}};

const DTypeRow* find_dtype(std::string_view name) {
  const auto* row =
      std::find_if(dtype_rows.begin(), dtype_rows.end(), [&](const DTypeRow& r) { return r.name == name; });
  return row == dtype_rows.end() ? nullptr : row;
}

constexpr int max_ignored_depth = 100;

// {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"key": "value"}}
class HeaderEvents : public JsonEvents {
 public:
  using JsonEvents::JsonEvents;
  SafetensorsHeader header;

  void on_start_object() override {
    switch (at_) {
      case At::ignored:
        enter_ignored();
        return;
      case At::document:
        at_ = At::tensors;
        return;
      case At::tensor_value:
        at_ = At::fields;
        return;
      case At::metadata_value:
        at_ = At::metadata;
        return;
      default:
        refuse("an object");
    }
  }

  void on_key(std::string& key) override {
    switch (at_) {
      case At::tensors:
        if (key == "__metadata__") {
          if (seen_metadata_) fail("{}: __metadata__ appears twice", source());
          seen_metadata_ = true;
          at_ = At::metadata_value;
          return;
        }
        entry_ = {};
        entry_.info.name = std::move(key);
        seen_dtype_ = seen_shape_ = seen_offsets_ = false;
        offsets_ = 0;
        at_ = At::tensor_value;
        return;
      case At::fields:
        if (key == "dtype") {
          begin_field(seen_dtype_, key, At::dtype);
        } else if (key == "shape") {
          begin_field(seen_shape_, key, At::shape_value);
        } else if (key == "data_offsets") {
          begin_field(seen_offsets_, key, At::offsets_value);
        } else {
          at_ = At::ignored;
        }
        return;
      case At::ignored:
        return;
      default:  // At::metadata; the parser gives keys inside objects only
        metadata_key_ = std::move(key);
        return;
    }
  }

  void on_null() override {
    if (at_ == At::metadata_value)
      at_ = At::tensors;
    else
      ignore_or_refuse("null");
  }
  void on_boolean(bool) override { ignore_or_refuse("a boolean"); }
  void on_negative(std::int64_t) override { ignore_or_refuse("a negative integer"); }
  void on_real(double value, const std::string& text) override {
    if (at_ != At::ignored) JsonEvents::on_real(value, text);
    leave_if_whole();
  }

  void on_string(std::string& value) override {
    if (at_ == At::dtype) {
      entry_.dtype_name = std::move(value);
      at_ = At::fields;
    } else if (at_ == At::metadata) {
      if (!header.metadata.emplace(metadata_key_, std::move(value)).second) {
        fail("{}: __metadata__ has the key '{}' twice", source(), printable(metadata_key_));
      }
    } else {
      ignore_or_refuse("a string");
    }
  }

  void on_start_array() override {
    if (at_ == At::shape_value) {
      at_ = At::shape;
    } else if (at_ == At::offsets_value) {
      at_ = At::offsets;
    } else if (at_ == At::ignored) {
      enter_ignored();
    } else {
      refuse("an array");
    }
  }

  void on_unsigned(std::uint64_t value) override {
    if (at_ == At::shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) refuse("that large");
      entry_.info.shape.push_back(static_cast<std::int64_t>(value));
    } else if (at_ == At::offsets) {
      if (offsets_ == 2) fail("{}: {} has more than two numbers", source(), where());
      (offsets_++ == 0 ? entry_.info.begin : entry_.info.end) = value;
    } else {
      ignore_or_refuse("an integer");
    }
  }

  void on_end_array() override {
    if (at_ == At::ignored) return leave_ignored();
    if (at_ == At::offsets && offsets_ != 2) fail("{}: {} has {} numbers, not two", source(), where(), offsets_);
    at_ = At::fields;
  }

  void on_end_object() override {
    if (at_ == At::ignored) return leave_ignored();
    if (at_ == At::fields) {
      for (const auto& [seen, key] :
           {std::pair{seen_dtype_, "dtype"}, {seen_shape_, "shape"}, {seen_offsets_, "data_offsets"}}) {
        if (!seen) fail("{}: tensor '{}' has no {}", source(), name(), key);
      }
      header.entries.push_back(std::move(entry_));
      at_ = At::tensors;
    } else if (at_ == At::metadata) {
      at_ = At::tensors;
    } else {
      at_ = At::end;
    }
  }

 protected:
  std::string where() const override {
    switch (at_) {
      case At::document:
      case At::end:
        return "the header";
      case At::tensors:
        return "a tensor's name";
      case At::metadata_value:
        return "__metadata__";
      case At::metadata:
        return fmt::format("__metadata__ key '{}'", printable(metadata_key_));
      case At::tensor_value:
      case At::fields:
      case At::ignored:
        return fmt::format("tensor '{}'", name());
      case At::dtype:
        return fmt::format("the dtype of tensor '{}'", name());
      case At::shape_value:
      case At::shape:
        return fmt::format("the shape of tensor '{}'", name());
      case At::offsets_value:
      case At::offsets:
        return fmt::format("data_offsets of tensor '{}'", name());
    }
    return "a value";
  }

 private:
  enum class At {
    document,
    tensors,
    tensor_value,
    fields,
    dtype,
    shape_value,
    shape,
    offsets_value,
    offsets,
    ignored,
    metadata_value,
    metadata,
    end
  };

  std::string name() const { return printable(entry_.info.name); }

  // The value of a key that the format does not have.
  void enter_ignored() {
    if (++ignored_depth_ > max_ignored_depth) fail("{}: {} is nested too deeply", source(), where());
  }
  void leave_ignored() {
    --ignored_depth_;
    leave_if_whole();
  }
  void leave_if_whole() {
    if (ignored_depth_ == 0) at_ = At::fields;
  }
  void ignore_or_refuse(std::string_view kind) {
    if (at_ != At::ignored) refuse(kind);
    leave_if_whole();
  }

  void begin_field(bool& seen, const std::string& key, At next) {
    if (seen) fail("{}: tensor '{}' has the key '{}' twice", source(), name(), key);
    seen = true;
    at_ = next;
  }

  At at_ = At::document;
  SafetensorsEntry entry_;
  std::string metadata_key_;
  bool seen_metadata_ = false, seen_dtype_ = false, seen_shape_ = false, seen_offsets_ = false;
  int offsets_ = 0, ignored_depth_ = 0;
};

// Bytes that shape and element width ask for. The product of the dimensions other than zero must fit too, so that no
// later order of multiplication overflows.
std::uint64_t bytes_of_shape(const SafetensorsEntry& entry, int bits, std::string_view source) {
  std::int64_t elements = 1;
  bool zero = false, overflow = false;
  for (const std::int64_t dim : entry.info.shape) {
    if (dim == 0) {
      zero = true;
    } else {
      overflow = overflow || __builtin_mul_overflow(elements, dim, &elements);
    }
  }
  std::int64_t total_bits = 0;
  if (overflow || __builtin_mul_overflow(elements, std::int64_t{bits}, &total_bits)) {
    fail("{}: the shape of tensor '{}' overflows", source, printable(entry.info.name));
  }
  if (zero) return 0;
  if (total_bits % 8 != 0) fail("{}: tensor '{}' does not end at a whole byte", source, printable(entry.info.name));
  return static_cast<std::uint64_t>(total_bits) / 8;
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes, std::string_view source) {
  if (json.empty() || json.front() != '{') fail("{}: the header is not a JSON object; not a safetensors file", source);
  HeaderEvents events{source};
  parse_json_events(json, events);
  SafetensorsHeader header = std::move(events.header);

  std::sort(header.entries.begin(), header.entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.info.begin, a.info.end) < std::pair(b.info.begin, b.info.end);
  });
  std::uint64_t position = 0;
  for (SafetensorsEntry& entry : header.entries) {
    TensorInfo& info = entry.info;
    if (info.end < info.begin) {
      fail("{}: tensor '{}' ends at byte {}, before it begins at {}", source, printable(info.name), info.end,
           info.begin);
    }
    if (info.end > data_bytes) {
      fail("{}: tensor '{}' ends at byte {} of {} data bytes; the file is cut short or damaged", source,
           printable(info.name), info.end, data_bytes);
    }
    if (info.begin != position) {
      fail("{}: tensor '{}' begins at byte {}, {} the end of the one before it, {}", source, printable(info.name),
           info.begin, info.begin < position ? "overlapping" : "leaving a hole after", position);
    }
    position = info.end;
    const DTypeRow* row = find_dtype(entry.dtype_name);
    if (row == nullptr)
      fail(
          "{}: tensor '{}' has the dtype '{}', which safetensors does not have; the file is damaged, or of a newer format",
          source, printable(info.name), printable(entry.dtype_name));
    entry.supported = row->dtype.has_value();
    info.dtype = row->dtype.value_or(DType::u8);
    const std::uint64_t expected = bytes_of_shape(entry, row->bits, source);
    if (expected != info.bytes()) {
      fail("{}: tensor '{}' has {} bytes, but its shape and dtype {} ask for {}", source, printable(info.name),
           info.bytes(), entry.dtype_name, expected);
    }
  }
  if (position != data_bytes) {
    fail("{}: the tensors end at byte {}, the data at {}; the file is damaged", source, position, data_bytes);
  }
  std::vector<std::string_view> names;
  names.reserve(header.entries.size());
  for (const SafetensorsEntry& entry : header.entries) names.push_back(entry.info.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) fail("{}: tensor '{}' appears twice", source, printable(*twice));
  return header;
}

}  // namespace so
