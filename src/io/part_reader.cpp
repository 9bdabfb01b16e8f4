#include "io/part_reader.h"

#include <algorithm>
#include <bit>

#include "base/bf16_arrays.h"
#include "base/error.h"
#include "base/finite.h"
#include "base/log.h"

namespace so {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 20;  // of a packed matrix, read at a time
// A plain tensor is read in parts so short that they are still in the core's cache when they are searched and
// converted.
constexpr std::size_t cached_bytes = std::size_t{256} << 10;
// A piece that passes by the ring: so long that threads seldom wait for each other, even where others take the CPUs.
constexpr std::size_t piece_in_place_bytes = std::size_t{8} << 20;

// fp16 to fp32, exact.
float widen_f16(std::uint16_t h) {
  const std::uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const std::uint32_t bits =
      exponent == 31 ? 0x7f800000u | (mantissa << 13) : ((exponent + 112) << 23) | (mantissa << 13);
  return std::bit_cast<float>(sign | bits);
}

}  // namespace

PartReader::SlotLayout::SlotLayout(const Request& request, std::size_t slot_bytes) {
  if (request.scales.empty()) {
    // The file's own elements are read into one of the two, but for codes.
    const bool reads_wide = !request.codes && request.info().dtype == DType::f32,
               reads_narrow = !request.codes && request.info().dtype != DType::f32;
    has_wide = (request.forms.wide || reads_wide) && request.wide_to == nullptr;
    has_narrow = (request.forms.narrow || reads_narrow) && request.narrow_to == nullptr;
  } else {
    has_wide = request.forms.wide;
    has_narrow = request.forms.narrow || !request.forms.wide;
  }
  constexpr std::size_t whole = 256;  // elements: both parts begin at cache lines, and pieces of tensors at blocks
  const std::size_t width = (has_wide ? sizeof(float) : 0) + (has_narrow ? sizeof(bf16) : 0);
  elements = width > 0 ? slot_bytes / width / whole * whole : piece_in_place_bytes / sizeof(float);
}

PartReader::PartReader(std::span<const Request> requests, std::size_t slot_bytes, PageCache cache, NonFinite non_finite)
    : requests_(requests),
      cache_(cache),
      non_finite_(non_finite),
      warned_(std::make_unique<std::atomic_flag[]>(requests.size())) {
  for (const Request& request : requests) layouts_.emplace_back(request, slot_bytes);
}

void PartReader::read_bytes(const SafetensorsReader& file, const std::string& tensor, std::uint64_t offset,
                            std::span<std::byte> to) const {
  try {
    file.read_into(tensor, offset, to);
  } catch (const Error& error) {
    fail("tensor '{}': {}", tensor, error.what());
  }
}

void PartReader::drop(const SafetensorsReader& file, const std::string& tensor, std::uint64_t offset,
                      std::size_t bytes) const {
  if (cache_ == PageCache::drop) file.drop_cache(tensor, offset, bytes);
}

std::size_t PartReader::chunks_of(const Mxfp4Matrix& matrix) {
  return 1 + (matrix.blocks_bytes() + chunk_bytes - 1) / chunk_bytes;
}

// Chunk 0 are the scales.
void PartReader::read_chunk(const PackedMatrix& packed, std::size_t chunk) const {
  const Request& request = requests_[packed.request];
  const std::size_t blocks = packed.matrix.blocks_bytes(), scales = packed.matrix.scales_bytes();
  if (chunk > 0) {
    const std::size_t begin = (chunk - 1) * chunk_bytes, size = std::min(chunk_bytes, blocks - begin);
    read_bytes(*request.file, request.tensor, packed.index * blocks + begin, packed.place.subspan(begin, size));
    drop(*request.file, request.tensor, packed.index * blocks + begin, size);
    return;
  }
  const std::span<std::byte> to = packed.place.subspan(blocks, scales);
  read_bytes(*request.scales_file, request.scales, packed.index * scales, to);
  drop(*request.scales_file, request.scales, packed.index * scales, scales);
  const auto bad = std::find(to.begin(), to.end(), std::byte{Mxfp4Matrix::not_a_number});
  if (bad != to.end())
    fail("{}: tensor '{}' holds the scale {} (at {}), which stands for not a number; the file is damaged",
         printable_path(request.scales_file->path()), request.scales, Mxfp4Matrix::not_a_number,
         packed.index * scales + static_cast<std::size_t>(bad - to.begin()));
}

WeightPiece PartReader::unpack(const TensorPart& part, const Mxfp4Matrix& matrix, void* slot) const {
  const Request& request = requests_[part.request];
  const SlotLayout& layout = layouts_[part.request];
  float* const wide = request.forms.wide ? layout.wide(slot) : nullptr;
  bf16* const narrow = request.forms.narrow ? layout.narrow(slot) : nullptr;
  const auto begin = static_cast<std::int64_t>(part.begin) % (matrix.rows * matrix.columns),
             size = static_cast<std::int64_t>(part.size);
  Mxfp4Window window;
  window.column_begin = begin / matrix.rows;
  window.column_end = (begin + size - 1) / matrix.rows + 1;
  window.row_begin = begin % matrix.rows;
  window.row_end = window.row_begin + std::min(size, matrix.rows);
  if (wide != nullptr || narrow != nullptr) dequantise_transposed(matrix, window, wide, narrow);
  judge(part, wide, narrow);
  WeightPiece piece;
  piece.begin = request.at + static_cast<std::int64_t>(part.begin);
  if (wide != nullptr) piece.wide = {wide, part.size};
  if (narrow != nullptr) piece.narrow = {narrow, part.size};
  return piece;
}

// Judges one of the two forms, since the other is made of the same numbers.
void PartReader::judge(const TensorPart& part, const float* wide, const bf16* narrow) const {
  if (wide != nullptr)
    judge(part, wide, DType::f32);
  else if (narrow != nullptr)
    judge(part, narrow, DType::bf16);
}

// Refuses what is not finite, or warns of it once a tensor.
void PartReader::judge(const TensorPart& part, const void* values, DType stored) const {
  const std::size_t at = find_non_finite(stored, values, part.size);
  if (at == part.size) return;
  const Request& request = requests_[part.request];
  const std::string found =
      fmt::format("{}: tensor '{}' holds numbers that are not finite (the first found is element {})",
                  printable_path(request.file->path()), request.tensor, part.begin + at);
  if (non_finite_ == NonFinite::refuse) fail("{}; begin from an undamaged copy or an earlier checkpoint", found);
  if (!warned_[part.request].test_and_set()) log_warning("{}", found);
}

void PartReader::read_codes(const TensorPart& part, float* wide, bf16* narrow) const {
  const Request& request = requests_[part.request];
  std::vector<std::uint8_t> codes(part.size);
  read_bytes(*request.file, request.tensor, part.begin, std::as_writable_bytes(std::span(codes)));
  request.codes->decode(static_cast<std::int64_t>(part.begin), codes, wide, narrow);
  judge(part, wide, narrow);
}

// `narrow` has the file's elements where they are no fp32, and takes bf16.
void PartReader::read_some(const TensorPart& part, float* wide, bf16* narrow) const {
  const Request& request = requests_[part.request];
  if (request.codes)
    return read_codes(part, request.forms.wide ? wide : nullptr, request.forms.narrow ? narrow : nullptr);
  const DType stored = request.file->info(request.tensor).dtype;
  void* const raw = stored == DType::f32 ? static_cast<void*>(wide) : narrow;
  const std::size_t n = part.size;
  read_bytes(*request.file, request.tensor, part.begin * size_of(stored),
             {static_cast<std::byte*>(raw), n * size_of(stored)});
  judge(part, raw, stored);
  if (stored == DType::bf16 && request.forms.wide) widen_bf16(narrow, wide, n);
  if (stored == DType::f32 && request.forms.narrow) round_to_bf16(wide, narrow, n);
  if (stored == DType::f16) {
    auto* const halves = static_cast<std::uint16_t*>(raw);
    if (request.forms.wide)
      for (std::size_t i = 0; i < n; ++i) wide[i] = widen_f16(halves[i]);
    if (request.forms.narrow)
      for (std::size_t i = 0; i < n; ++i) halves[i] = bf16::round(widen_f16(halves[i]));
  }
}

WeightPiece PartReader::read(const TensorPart& part, void* slot) const {
  const Request& request = requests_[part.request];
  const SlotLayout& layout = layouts_[part.request];
  const std::size_t before = part.begin - static_cast<std::size_t>(request.first);
  float* const wide = request.wide_to != nullptr ? request.wide_to + before : layout.wide(slot);
  bf16* const narrow = request.narrow_to != nullptr ? request.narrow_to + before : layout.narrow(slot);
  const std::size_t width = size_of(request.info().dtype), widest = request.codes ? sizeof(float) : width;
  TensorPart some = part;
  for (std::size_t done = 0; done < part.size; done += some.size) {
    some.begin = part.begin + done;
    some.size = std::min(cached_bytes / widest, part.size - done);
    read_some(some, wide + done, narrow + done);
  }
  drop(*request.file, request.tensor, part.begin * width, part.size * width);
  WeightPiece piece;
  piece.begin = request.at + static_cast<std::int64_t>(part.begin);
  if (request.forms.wide) piece.wide = {wide, part.size};
  if (request.forms.narrow) piece.narrow = {narrow, part.size};
  return piece;
}

}  // namespace so
