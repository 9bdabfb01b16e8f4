#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "base/quantities.h"
#include "base/xxh3.h"
#include "io/file_stamp.h"
#include "io/json_events.h"

namespace so {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are stored little-endian and are not swapped");

constexpr std::uint64_t length_bytes = 8;
constexpr std::string_view fp8_name = "F8_E4M3";
constexpr std::uint64_t max_header_bytes = 100'000'000;  // the reference implementation's limit

std::string_view safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::i32:
      return "I32";
    case DType::i64:
      return "I64";
    case DType::u8:
      return "U8";
  }
  SO_BUG("dtype {}", static_cast<int>(dtype));
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------- reading

struct SafetensorsReader::Mapping {
  FileStamp opened;  // the file's, when it was
  std::once_flag once;
  MappedFile file;
};

SafetensorsReader::SafetensorsReader(File file) : file_(std::move(file)), mapping_(std::make_unique<Mapping>()) {
  mapping_->opened = stamp_of(file_);
  const std::string source = printable_path(path());
  const std::uint64_t file_bytes = file_.size();
  if (file_bytes < length_bytes) {
    fail("{}: {} is too short for a safetensors file", source, format_bytes(file_bytes));
  }
  std::array<std::byte, length_bytes> length_field{};
  file_.pread_exact(length_field, 0);
  const auto header_bytes = std::bit_cast<std::uint64_t>(length_field);
  if (header_bytes > max_header_bytes) {
    fail("{}: a header of {} bytes, the format allows {}; not a safetensors file (a Git LFS pointer?)", source,
         header_bytes, max_header_bytes);
  }
  if (header_bytes > file_bytes - length_bytes) {
    fail("{}: the header has {} bytes, the file only {} after it begins; the file is cut short", source, header_bytes,
         file_bytes - length_bytes);
  }
  data_begin_ = length_bytes + header_bytes;
  data_bytes_ = file_bytes - data_begin_;
  std::string json(static_cast<std::size_t>(header_bytes), '\0');
  file_.pread_exact(std::as_writable_bytes(std::span(json)), length_bytes);
  header_ = parse_safetensors_header(json, data_bytes_, source);

  names_.reserve(header_.entries.size());
  for (const SafetensorsEntry& entry : header_.entries) names_.push_back(entry.info.name);
  index_.reserve(names_.size());
  for (std::size_t i = 0; i < names_.size(); ++i) index_.emplace(names_[i], i);
}

SafetensorsReader::~SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&&) noexcept = default;

bool SafetensorsReader::contains(std::string_view name) const { return index_.contains(name); }

const SafetensorsEntry* SafetensorsReader::find_entry(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.entries[found->second];
}

const TensorInfo* SafetensorsReader::find(std::string_view name) const {
  const SafetensorsEntry* entry = find_entry(name);
  if (entry == nullptr) return nullptr;
  if (!entry->supported) {
    fail("{}: tensor '{}' has the element type {}, which is not supported (F32, BF16, F16, I32, I64, U8 are)",
         printable_path(path()), printable(name), printable(entry->dtype_name));
  }
  return &entry->info;
}

const TensorInfo* SafetensorsReader::find_fp8(std::string_view name) const {
  const SafetensorsEntry* entry = find_entry(name);
  return entry != nullptr && entry->dtype_name == fp8_name ? &entry->info : nullptr;
}

const TensorInfo& SafetensorsReader::readable(std::string_view name) const {
  const TensorInfo* fp8 = find_fp8(name);
  return fp8 != nullptr ? *fp8 : info(name);
}

const TensorInfo& SafetensorsReader::info(std::string_view name) const {
  const TensorInfo* found = find(name);
  if (found == nullptr) fail("{} has no tensor '{}'", printable_path(path()), printable(name));
  return *found;
}

void SafetensorsReader::require_unchanged() const {
  if (stamp_of(file_) != mapping_->opened)
    fail("{} has changed since it was opened, and tensors of it are still to be copied; put the file back as it was",
         printable_path(path()));
}

std::span<const std::byte> SafetensorsReader::bytes(std::string_view name) const {
  const TensorInfo& tensor = readable(name);
  std::call_once(mapping_->once, [this] { mapping_->file = MappedFile(file_); });
  const auto all = mapping_->file.bytes();
  // The file had this size when it was opened; a page beyond its end would be SIGBUS.
  if (all.size() < data_begin_ + data_bytes_) fail("{} was shortened while it was open", printable_path(path()));
  return all.subspan(static_cast<std::size_t>(data_begin_ + tensor.begin), static_cast<std::size_t>(tensor.bytes()));
}

void SafetensorsReader::read_into(std::string_view name, std::span<std::byte> out) const {
  const TensorInfo& tensor = readable(name);
  SO_CHECK(out.size() == tensor.bytes(), "{}: {} bytes into {}", printable(name), tensor.bytes(), out.size());
  file_.pread_exact(out, data_begin_ + tensor.begin);
}

void SafetensorsReader::read_into(std::string_view name, std::uint64_t byte_offset, std::span<std::byte> out) const {
  const TensorInfo& tensor = readable(name);
  SO_CHECK(byte_offset <= tensor.bytes() && out.size() <= tensor.bytes() - byte_offset, "{}: bytes [{}, +{}) of {}",
           printable(name), byte_offset, out.size(), tensor.bytes());
  file_.pread_exact(out, data_begin_ + tensor.begin + byte_offset);
}

void SafetensorsReader::drop_cache() const { file_.drop_cache(); }
void SafetensorsReader::drop_cache(std::string_view name, std::uint64_t byte_offset, std::uint64_t bytes) const {
  file_.drop_cache(data_begin_ + readable(name).begin + byte_offset, bytes);
}
void SafetensorsReader::expect_sequential() const { file_.expect_sequential(); }

// ---------------------------------------------------------------------------------------------------------- writing

std::uint64_t TensorSpec::bytes() const {
  std::uint64_t n = size_of(dtype);
  for (const std::int64_t dim : shape) {
    SO_CHECK(dim >= 0 && !__builtin_mul_overflow(n, static_cast<std::uint64_t>(dim), &n), "shape of {}", name);
  }
  return n;
}

struct SafetensorsWriter::State {
  struct Tensor {
    std::uint64_t begin = 0, bytes = 0, written = 0;
    std::map<std::uint64_t, std::uint64_t> claimed;  // disjoint ranges [first, second), neighbours merged
  };
  File file;
  FileWriters writers = FileWriters::one;
  std::uint64_t data_begin = 0, data_bytes = 0;
  std::map<std::string, Tensor, std::less<>> tensors;
  std::mutex mutex;  // guards the bookkeeping of all tensors, not the writing

  std::mutex hashing;
  Xxh3Stream hash;
  std::uint64_t hashed = 0;  // bytes from the file's beginning
  FileChecksum checksum;

  void hash_if_next(std::uint64_t offset, std::span<const std::byte> bytes) {
    if (writers != FileWriters::one) return;
    const std::lock_guard lock(hashing);
    if (offset != hashed) return;
    hash.add(bytes);
    hashed += bytes.size();
  }
  void hash_the_rest() {
    const std::uint64_t end = data_begin + data_bytes;
    std::vector<std::byte> buffer;
    while (hashed < end) {
      buffer.resize(static_cast<std::size_t>(std::min<std::uint64_t>(end - hashed, std::uint64_t{1} << 20)));
      file.pread_exact(buffer, hashed);
      hash.add(buffer);
      hashed += buffer.size();
    }
    checksum = {end, hash.value()};
  }
};

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorSpec>& tensors,
                                     const std::map<std::string, std::string>& metadata, FileWriters writers)
    : state_(std::make_unique<State>()) {
  state_->writers = writers;
  std::vector<const TensorSpec*> order;
  order.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(),
                   [](const TensorSpec* a, const TensorSpec* b) { return size_of(a->dtype) > size_of(b->dtype); });

  // Written by hand, entry by entry, because a nlohmann object would sort the names; json(...).dump() quotes them.
  std::string header = "{";
  const auto quote = [&](const std::string& text) {
    try {
      return nlohmann::json(text).dump();
    } catch (const nlohmann::json::exception&) {
      fail("cannot write {}: the name '{}' is not valid UTF-8", printable_path(path), printable(text));
    }
  };
  const auto separate = [&] {
    if (header.size() > 1) header += ',';
  };
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    bool first = true;
    for (const auto& [key, value] : metadata) {
      if (!first) header += ',';
      first = false;
      header += quote(key) + ":" + quote(value);
    }
    header += '}';
  }
  std::uint64_t position = 0;
  for (const TensorSpec* tensor : order) {
    SO_CHECK(tensor->name != "__metadata__", "a reserved name");
    State::Tensor slot;
    slot.begin = position;
    slot.bytes = tensor->bytes();
    SO_CHECK(state_->tensors.emplace(tensor->name, slot).second, "tensor {} twice", tensor->name);
    position += slot.bytes;
    separate();
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[", quote(tensor->name), safetensors_name(tensor->dtype));
    for (std::size_t i = 0; i < tensor->shape.size(); ++i) {
      header += fmt::format("{}{}", i == 0 ? "" : ",", tensor->shape[i]);
    }
    header += fmt::format("],\"data_offsets\":[{},{}]}}", slot.begin, position);
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');  // data begins at a multiple of 8
  if (header.size() > max_header_bytes) {
    fail("cannot write {}: its header would have {} bytes, the format allows {}; use smaller shards",
         printable_path(path), header.size(), max_header_bytes);
  }

  state_->data_begin = length_bytes + header.size();
  state_->data_bytes = position;
  if (writers == FileWriters::other_of_several) {
    state_->file = File::update(path);
    if (state_->file.size() != file_bytes())
      fail("{} has {} bytes where {} were expected: not all processes write the same file", printable_path(path),
           state_->file.size(), file_bytes());
    return;
  }
  state_->file = File::create(path);
  state_->file.preallocate(state_->data_begin + state_->data_bytes);
  const auto length_field = std::bit_cast<std::array<std::byte, length_bytes>>(std::uint64_t{header.size()});
  state_->file.pwrite_all(length_field, 0);
  state_->file.pwrite_all(std::as_bytes(std::span(header)), length_bytes);
  state_->hash_if_next(0, length_field);
  state_->hash_if_next(length_bytes, std::as_bytes(std::span(header)));
}

SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;

const std::filesystem::path& SafetensorsWriter::path() const { return state_->file.path(); }
std::uint64_t SafetensorsWriter::data_bytes() const { return state_->data_bytes; }
std::uint64_t SafetensorsWriter::file_bytes() const { return state_->data_begin + state_->data_bytes; }

std::uint64_t SafetensorsWriter::written_bytes() const {
  const std::lock_guard lock(state_->mutex);
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : state_->tensors) bytes += tensor.written;
  return bytes;
}

void SafetensorsWriter::write(std::string_view name, std::uint64_t byte_offset, std::span<const std::byte> bytes) {
  const auto found = state_->tensors.find(name);
  SO_CHECK(found != state_->tensors.end(), "{} is not in the plan of {}", name, printable_path(path()));
  State::Tensor& tensor = found->second;
  SO_CHECK(byte_offset <= tensor.bytes && bytes.size() <= tensor.bytes - byte_offset, "{}: bytes [{}, +{}) of {}", name,
           byte_offset, bytes.size(), tensor.bytes);
  if (bytes.empty()) return;
  std::uint64_t begin = byte_offset, end = byte_offset + bytes.size();
  {
    const std::lock_guard lock(state_->mutex);
    SO_CHECK(state_->file.is_open(), "write to {} after finish()", printable_path(path()));
    auto next = tensor.claimed.lower_bound(begin);
    SO_CHECK(next == tensor.claimed.end() || end <= next->first, "{}: bytes [{}, {}) written twice", name, begin, end);
    if (next != tensor.claimed.begin()) {
      const auto previous = std::prev(next);
      SO_CHECK(previous->second <= begin, "{}: bytes [{}, {}) written twice", name, begin, end);
      if (previous->second == begin) {
        begin = previous->first;
        tensor.claimed.erase(previous);
      }
    }
    if (next != tensor.claimed.end() && next->first == end) {
      end = next->second;
      tensor.claimed.erase(next);
    }
    tensor.claimed.emplace(begin, end);
  }
  state_->hash_if_next(state_->data_begin + tensor.begin + byte_offset, bytes);
  state_->file.pwrite_all(bytes, state_->data_begin + tensor.begin + byte_offset);
  const std::lock_guard lock(state_->mutex);
  tensor.written += bytes.size();
}

void SafetensorsWriter::finish() {
  const std::lock_guard lock(state_->mutex);
  if (state_->writers == FileWriters::one) {
    for (const auto& [name, tensor] : state_->tensors) {
      SO_CHECK(tensor.written == tensor.bytes, "{}: {} of {} bytes of {} were written", printable_path(path()),
               tensor.written, tensor.bytes, name);
    }
    state_->hash_the_rest();
  }
  state_->file.sync();
  state_->file.close();
}

const FileChecksum& SafetensorsWriter::checksum() const {
  SO_CHECK(state_->writers == FileWriters::one, "one of several writers is asked for the checksum of {}",
           printable_path(path()));
  return state_->checksum;
}

}  // namespace so
