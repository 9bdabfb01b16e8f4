// The safetensors file format: 8 bytes of little-endian header length, a JSON header, then the tensors' bytes.
// Format: https://huggingface.co/docs/safetensors (section "Format").
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "io/checksums.h"

namespace so {

// A tensor in a file. Bytes [begin, end) count from the start of the data section (after the header).
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // empty: a scalar
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t bytes() const { return end - begin; }
};

// A header's entry for one tensor. The format knows more element types than the engine. Of a type that the engine lacks
// (`supported` false) the name is kept, and only asking for the tensor is an error.
struct SafetensorsEntry {
  TensorInfo info;
  std::string dtype_name;  // as the file spells it: "BF16"
  bool supported = true;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;        // in order of their bytes
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// Parses and validates a header's JSON against the size of the data section; `source` names the file in errors.
// Untrusted input: any byte sequence gives a result or an Error, in memory proportional to its length. Refused are
// duplicate names or keys, dtypes that the format does not have, shapes that overflow, sizes that contradict shape and
// dtype, and offsets that leave a hole, overlap, or do not end where the data ends. As in the format's own library,
// further keys of a tensor are ignored, and "__metadata__" may be null.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes, std::string_view source);

// A safetensors file opened for reading and validated up front. Const methods may be called from several threads.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::filesystem::path& path) : SafetensorsReader(File::open(path)) {}
  explicit SafetensorsReader(File file);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&&) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) noexcept;

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<std::string>& names() const { return names_; }  // in order of their bytes in the file
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  std::uint64_t data_bytes() const { return data_bytes_; }  // of all tensors together

  bool contains(std::string_view name) const;
  // Null if the file has no such tensor. An element type the engine lacks is an Error that names it.
  const TensorInfo* find(std::string_view name) const;
  const TensorInfo& info(std::string_view name) const;  // as find(), but absence is an Error
  // The tensor, if its elements are FP8 (F8_E4M3), with u8 as the type of their codes; else null. It can be read, but
  // the engine computes with no such type: io/fp8.h makes other elements of it.
  const TensorInfo* find_fp8(std::string_view name) const;

  // The tensor's bytes in a mapping of the file, made at the first call; valid while the reader lives. Aligned to
  // the element size only if the file's writer took care of it.
  std::span<const std::byte> bytes(std::string_view name) const;

  // Reads the tensor, or its bytes [byte_offset, byte_offset + out.size()), into `out` without mapping it.
  void read_into(std::string_view name, std::span<std::byte> out) const;  // out.size() == info(name).bytes()
  void read_into(std::string_view name, std::uint64_t byte_offset, std::span<std::byte> out) const;

  // Throws Error if the file was written to since it was opened.
  void require_unchanged() const;

  // Advice to the kernel: it may forget the file's pages, or those of a part of a tensor; the file will be read from
  // front to back.
  void drop_cache() const;
  void drop_cache(std::string_view name, std::uint64_t byte_offset, std::uint64_t bytes) const;
  void expect_sequential() const;

 private:
  struct Mapping;
  const SafetensorsEntry* find_entry(std::string_view name) const;
  const TensorInfo& readable(std::string_view name) const;  // info() or find_fp8()

  File file_;
  SafetensorsHeader header_;
  std::uint64_t data_begin_ = 0;
  std::uint64_t data_bytes_ = 0;
  std::vector<std::string> names_;
  std::unordered_map<std::string_view, std::size_t> index_;  // keys point into names_
  std::unique_ptr<Mapping> mapping_;
};

// A tensor to be written.
struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;

  std::uint64_t bytes() const;
};

// Says who writes a file: one process alone, or several that each write a part of its bytes. The first of several
// creates the file, and the others open it when it is there.
enum class FileWriters : std::uint8_t { one, first_of_several, other_of_several };

// Writes a safetensors file piece by piece, tensors in any order. The header is written and the whole file's space
// claimed by the constructor, so a full disk shows before the first write. Until finish() returns the file is not
// complete (its bytes may be zeros): write into a directory that is renamed when done (io/atomic_directory.h).
class SafetensorsWriter {
 public:
  // Tensors lie in the order given, those of wider element type first as the format's reference implementation has
  // them, so that each is aligned to its element. Names must be distinct. `metadata` may be empty; transformers wants
  // {"format": "pt"}. Of several writers each is given the same.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorSpec>& tensors,
                    const std::map<std::string, std::string>& metadata, FileWriters writers = FileWriters::one);
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;

  const std::filesystem::path& path() const;
  std::uint64_t data_bytes() const;
  std::uint64_t file_bytes() const;

  // Writes bytes [byte_offset, byte_offset + bytes.size()) of a tensor. Any thread, any order, every byte exactly once.
  void write(std::string_view name, std::uint64_t byte_offset, std::span<const std::byte> bytes);

  // Flushes to the device and closes, and checks before that every byte was written; of several writers the caller
  // compares the sum of their written_bytes() with data_bytes(). Call once, after all write() returned.
  void finish();
  std::uint64_t written_bytes() const;  // by this writer, of the tensors

  // The checksum of the whole file, after finish(); of one writer, since several see parts of it. It is computed as the
  // bytes come, as far as they come in the file's order; finish() reads the rest again.
  const FileChecksum& checksum() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace so
