#include "io/shard_reader.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/bf16_arrays.h"
#include "base/error.h"
#include "base/finite.h"
#include "base/log.h"
#include "base/tensor.h"
#include "device/trace.h"
#include "io/mxfp4.h"

namespace so {
namespace {

constexpr std::size_t page = 4096;
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

// A piece of a slot's memory: fp32 first, then two-byte elements (the file's, or bf16 made in place of fp16), each only
// if it passes through the slot.
struct SlotLayout {
  SlotLayout(bool wide, bool narrow, std::size_t slot_bytes) : has_wide(wide), has_narrow(narrow) {
    constexpr std::size_t whole = 256;  // elements: both parts begin at cache lines, and pieces of tensors at blocks
    const std::size_t width = (has_wide ? sizeof(float) : 0) + (has_narrow ? sizeof(bf16) : 0);
    elements = width > 0 ? slot_bytes / width / whole * whole : piece_in_place_bytes / sizeof(float);
  }
  float* wide(void* slot) const { return static_cast<float*>(slot); }
  bf16* narrow(void* slot) const {
    return static_cast<bf16*>(static_cast<void*>(static_cast<float*>(slot) + (has_wide ? elements : 0)));
  }

  bool has_wide, has_narrow;
  std::size_t elements = 0;  // that a slot has room for
};

// Makes one matrix of the tensors in MXFP4 that a request names.
Mxfp4Matrix matrix_of(const ShardReader::Request& request) {
  const auto& blocks = request.file->info(request.tensor);
  const auto& scales = request.scales_file->info(request.scales);
  SO_CHECK(blocks.dtype == DType::u8 && scales.dtype == DType::u8 && blocks.shape.size() == 4 &&
               blocks.shape[3] == Mxfp4Matrix::block_bytes && scales.shape.size() == 3 &&
               std::equal(scales.shape.begin(), scales.shape.end(), blocks.shape.begin()),
           "'{}' {} and '{}' {}", request.tensor, shape_string(blocks.shape), request.scales,
           shape_string(scales.shape));
  Mxfp4Matrix matrix;
  matrix.rows = blocks.shape[1];
  matrix.columns = blocks.shape[2] * Mxfp4Matrix::block;
  return matrix;
}

}  // namespace

LoadingRing::LoadingRing(Device& device, std::size_t slot_bytes, std::size_t packed_bytes) : slots_(2 * max_readers) {
  SO_CHECK(slot_bytes > 0 && slot_bytes % page == 0, "slots of {} bytes", slot_bytes);
  for (Slot& slot : slots_) {
    slot.memory = device.allocate(MemoryKind::pinned, slot_bytes, "loading ring");
    slot.free = device.create_event();
  }
  if (packed_bytes > 0)
    for (Buffer& place : packed_) place = device.allocate(MemoryKind::pageable, packed_bytes, "loading packed");
}

std::size_t LoadingRing::slot_bytes_for(std::int64_t elements) {
  constexpr std::size_t share = 16, largest = std::size_t{2} << 20;
  const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(bf16) / share / (2 * max_readers);
  return std::clamp(bytes / page * page, page, largest);
}

struct ShardReader::State {
  static constexpr std::size_t none = ~std::size_t{0};

  struct Part {
    std::size_t request = 0;
    std::size_t begin = 0, size = 0;  // elements of the tensor, as they are given out
    std::uint64_t file_bytes = 0;     // that count as read with it
    std::size_t packed = none;        // the matrix it is unpacked from
  };
  struct Arrival {
    bool here = false;
    WeightPiece piece;
    std::exception_ptr error;
  };
  // A quantised matrix. Matrix i lies in the ring's packed place i, going round.
  struct Packed {
    std::size_t request = 0, index = 0;  // of the request's tensor
    Mxfp4Matrix matrix;                  // in its place
    std::size_t to_read = 0;             // chunks; the rest is guarded by the mutex
    std::size_t to_unpack = 0;           // parts
    std::exception_ptr error;            // of its reading
  };
  // A thread takes on one of these at a time: a part, or a chunk of a packed matrix to be read. The work that a task
  // waits for comes before it in the list, or is done by the caller.
  struct Task {
    std::size_t part = none;  // part i uses slot i, going round
    std::size_t packed = none, chunk = 0;
  };

  State(LoadingRing& r, std::vector<Request> q, PageCache c, NonFinite n)
      : ring(r),
        requests(std::move(q)),
        cache(c),
        non_finite(n),
        warned(std::make_unique<std::atomic_flag[]>(requests.size())) {}

  void add_plain(std::size_t request);
  void add_packed(std::size_t request);
  void add_waiting_parts();

  void work();
  void give(std::size_t turn, std::unique_lock<std::mutex>& lock);
  void read_packed(const Task& task, std::unique_lock<std::mutex>& lock);
  WeightPiece read(const Part& part, void* slot) const;
  void read_some(const Part& part, float* wide, bf16* narrow) const;
  void read_codes(const Part& part, float* wide, bf16* narrow) const;
  WeightPiece unpack(const Part& part, void* slot) const;
  void read_chunk(const Packed& packed, std::size_t chunk) const;
  void judge(const Part& part, const void* values, DType stored) const;
  void read_bytes(const SafetensorsReader& file, const std::string& tensor, std::uint64_t offset,
                  std::span<std::byte> to) const;
  void drop(const SafetensorsReader& file, const std::string& tensor, std::uint64_t offset, std::size_t bytes) const;
  void stop();

  LoadingRing& ring;
  const std::vector<Request> requests;
  const PageCache cache;
  const NonFinite non_finite;
  const std::unique_ptr<std::atomic_flag[]> warned;  // by request
  std::vector<SlotLayout> layouts;                   // per request
  std::vector<Part> parts, waiting_parts;
  std::vector<Packed> packed;
  std::vector<Task> tasks;
  std::uint64_t total_bytes = 0;

  std::mutex mutex;  // guards what follows
  std::condition_variable arrived, progressed;
  std::vector<Arrival> arrivals;  // per slot
  std::size_t claimed = 0;        // tasks that a thread has taken on
  std::size_t given = 0;          // parts given to the caller
  std::size_t released = 0;       // parts that the caller has released
  bool stopping = false;

  std::uint64_t bytes_given = 0;  // the caller's thread's
  std::vector<std::thread> threads;
};

void ShardReader::State::add_plain(std::size_t request) {
  add_waiting_parts();
  const Request& r = requests[request];
  const TensorInfo& info = r.info();
  SO_CHECK(r.codes || info.dtype == DType::f32 || info.dtype == DType::bf16 || info.dtype == DType::f16, "'{}' is {}",
           r.tensor, name_of(info.dtype));
  const std::size_t width = size_of(info.dtype), elements = static_cast<std::size_t>(info.bytes()) / width;
  const auto first = static_cast<std::size_t>(r.first),
             last = r.last == Request::all ? elements : static_cast<std::size_t>(r.last);
  SO_CHECK(first <= last && last <= elements, "elements [{}, {}) of '{}', which has {}", r.first, r.last, r.tensor,
           elements);
  total_bytes += (last - first) * width;
  // The file's own elements are read into one of the two, but for codes.
  const bool reads_wide = !r.codes && info.dtype == DType::f32, reads_narrow = !r.codes && info.dtype != DType::f32;
  layouts.emplace_back((r.forms.wide || reads_wide) && r.wide_to == nullptr,
                       (r.forms.narrow || reads_narrow) && r.narrow_to == nullptr, ring.slot_bytes());
  const std::size_t piece = layouts.back().elements;
  for (std::size_t begin = first; begin < last; begin += piece) {
    const std::size_t size = std::min(piece, last - begin);
    tasks.push_back({.part = parts.size()});
    parts.push_back({request, begin, size, size * width});
  }
}

// The chunks of a matrix stand before the parts of the matrix before it, so that reading is ahead.
void ShardReader::State::add_packed(std::size_t request) {
  const Request& r = requests[request];
  const Mxfp4Matrix shape = matrix_of(r);
  const std::size_t count = static_cast<std::size_t>(r.file->info(r.tensor).shape[0]);
  total_bytes += r.file->info(r.tensor).bytes() + r.scales_file->info(r.scales).bytes();
  layouts.emplace_back(r.forms.wide, r.forms.narrow || !r.forms.wide, ring.slot_bytes());
  const auto rows = static_cast<std::size_t>(shape.rows), columns = static_cast<std::size_t>(shape.columns);
  if (rows == 0 || columns == 0) return;
  const std::size_t bytes = shape.blocks_bytes() + shape.scales_bytes(), room = layouts.back().elements;
  SO_CHECK(bytes <= ring.packed(0).size(), "'{}': {} bytes in a place of {}", r.tensor, bytes, ring.packed(0).size());
  // Whole rows of the result, if a slot holds one; whole blocks of them, if it holds those.
  std::size_t rows_at_once = room / rows;
  if (rows_at_once > Mxfp4Matrix::block) rows_at_once -= rows_at_once % Mxfp4Matrix::block;
  const std::size_t piece = rows_at_once > 0 ? rows_at_once * rows : room;
  for (std::size_t i = 0; i < count; ++i) {
    Packed one;
    one.request = request, one.index = i;
    one.matrix = shape;
    one.matrix.blocks = ring.packed(packed.size()).data();
    one.matrix.scales = reinterpret_cast<const std::uint8_t*>(one.matrix.blocks + shape.blocks_bytes());
    one.to_read = 1 + (shape.blocks_bytes() + chunk_bytes - 1) / chunk_bytes;
    for (std::size_t chunk = 0; chunk < one.to_read; ++chunk)
      tasks.push_back({.packed = packed.size(), .chunk = chunk});
    add_waiting_parts();
    const std::size_t end = rows * columns;
    std::size_t accounted = 0;
    for (std::size_t begin = 0; begin < end;) {
      // Within a row if that is all a slot holds.
      const std::size_t most = rows_at_once > 0 ? end : (begin / rows + 1) * rows;
      const std::size_t size = std::min(piece, most - begin);
      const std::size_t read =
          begin + size == end ? bytes
                              : static_cast<std::size_t>(static_cast<double>(bytes) *
                                                         static_cast<double>(begin + size) / static_cast<double>(end));
      waiting_parts.push_back({request, i * end + begin, size, read - accounted, packed.size()});
      accounted = read;
      begin += size;
    }
    one.to_unpack = waiting_parts.size();
    packed.push_back(std::move(one));
  }
}

void ShardReader::State::add_waiting_parts() {
  for (const Part& part : waiting_parts) {
    tasks.push_back({.part = parts.size()});
    parts.push_back(part);
  }
  waiting_parts.clear();
}

void ShardReader::State::read_bytes(const SafetensorsReader& file, const std::string& tensor, std::uint64_t offset,
                                    std::span<std::byte> to) const {
  try {
    file.read_into(tensor, offset, to);
  } catch (const Error& error) {
    fail("tensor '{}': {}", tensor, error.what());
  }
}

void ShardReader::State::drop(const SafetensorsReader& file, const std::string& tensor, std::uint64_t offset,
                              std::size_t bytes) const {
  if (cache == PageCache::drop) file.drop_cache(tensor, offset, bytes);
}

// Chunk 0 are the scales.
void ShardReader::State::read_chunk(const Packed& one, std::size_t chunk) const {
  const Request& request = requests[one.request];
  const std::size_t blocks = one.matrix.blocks_bytes(), scales = one.matrix.scales_bytes();
  const std::span<std::byte> place = ring.packed(static_cast<std::size_t>(&one - packed.data()));
  if (chunk > 0) {
    const std::size_t begin = (chunk - 1) * chunk_bytes, size = std::min(chunk_bytes, blocks - begin);
    read_bytes(*request.file, request.tensor, one.index * blocks + begin, place.subspan(begin, size));
    drop(*request.file, request.tensor, one.index * blocks + begin, size);
    return;
  }
  const std::span<std::byte> to = place.subspan(blocks, scales);
  read_bytes(*request.scales_file, request.scales, one.index * scales, to);
  drop(*request.scales_file, request.scales, one.index * scales, scales);
  const auto bad = std::find(to.begin(), to.end(), std::byte{Mxfp4Matrix::not_a_number});
  if (bad != to.end())
    fail("{}: tensor '{}' holds the scale {} (at {}), which stands for not a number; the file is damaged",
         printable_path(request.scales_file->path()), request.scales, Mxfp4Matrix::not_a_number,
         one.index * scales + static_cast<std::size_t>(bad - to.begin()));
}

WeightPiece ShardReader::State::unpack(const Part& part, void* slot) const {
  const Request& request = requests[part.request];
  const SlotLayout& layout = layouts[part.request];
  const Mxfp4Matrix& matrix = packed[part.packed].matrix;
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
  if (wide != nullptr) judge(part, wide, DType::f32);
  if (wide == nullptr && narrow != nullptr) judge(part, narrow, DType::bf16);
  WeightPiece piece;
  piece.begin = request.at + static_cast<std::int64_t>(part.begin);
  if (wide != nullptr) piece.wide = {wide, part.size};
  if (narrow != nullptr) piece.narrow = {narrow, part.size};
  return piece;
}

// Refuses what is not finite, or warns of it once a tensor.
void ShardReader::State::judge(const Part& part, const void* values, DType stored) const {
  const std::size_t at = find_non_finite(stored, values, part.size);
  if (at == part.size) return;
  const Request& request = requests[part.request];
  const std::string found =
      fmt::format("{}: tensor '{}' holds numbers that are not finite (the first found is element {})",
                  printable_path(request.file->path()), request.tensor, part.begin + at);
  if (non_finite == NonFinite::refuse) fail("{}; begin from an undamaged copy or an earlier checkpoint", found);
  if (!warned[part.request].test_and_set()) log_warning("{}", found);
}

void ShardReader::State::read_codes(const Part& part, float* wide, bf16* narrow) const {
  const Request& request = requests[part.request];
  std::vector<std::uint8_t> codes(part.size);
  read_bytes(*request.file, request.tensor, part.begin, std::as_writable_bytes(std::span(codes)));
  request.codes->decode(static_cast<std::int64_t>(part.begin), codes, wide, narrow);
  if (wide != nullptr) judge(part, wide, DType::f32);
  if (wide == nullptr && narrow != nullptr) judge(part, narrow, DType::bf16);
}

// `narrow` has the file's elements where they are no fp32, and takes bf16.
void ShardReader::State::read_some(const Part& part, float* wide, bf16* narrow) const {
  const Request& request = requests[part.request];
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

WeightPiece ShardReader::State::read(const Part& part, void* slot) const {
  const Request& request = requests[part.request];
  const SlotLayout& layout = layouts[part.request];
  const std::size_t before = part.begin - static_cast<std::size_t>(request.first);
  float* const wide = request.wide_to != nullptr ? request.wide_to + before : layout.wide(slot);
  bf16* const narrow = request.narrow_to != nullptr ? request.narrow_to + before : layout.narrow(slot);
  const std::size_t width = size_of(request.info().dtype), widest = request.codes ? sizeof(float) : width;
  Part some = part;
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

void ShardReader::State::work() {
  std::unique_lock lock(mutex);
  while (!stopping && claimed < tasks.size()) {
    const Task& task = tasks[claimed++];
    if (task.part != none)
      give(task.part, lock);
    else
      read_packed(task, lock);
  }
}

void ShardReader::State::give(std::size_t turn, std::unique_lock<std::mutex>& lock) {
  const Part& part = parts[turn];
  Packed* const from = part.packed == none ? nullptr : &packed[part.packed];
  progressed.wait(
      lock, [&] { return stopping || (turn < released + ring.size() && (from == nullptr || from->to_read == 0)); });
  if (stopping) return;
  const std::exception_ptr unread = from == nullptr ? nullptr : from->error;
  lock.unlock();
  Arrival arrival;
  arrival.here = true;
  arrival.error = unread;
  try {
    LoadingRing::Slot& slot = ring.slot(turn);
    slot.free->synchronize();
    if (from == nullptr) {
      const TraceSpan span("read weights");
      arrival.piece = read(part, slot.memory.data());
    } else if (!unread) {
      const TraceSpan span("unpack weights");
      arrival.piece = unpack(part, slot.memory.data());
    }
  } catch (...) {
    arrival.error = std::current_exception();
  }
  lock.lock();
  arrivals[turn % ring.size()] = std::move(arrival);
  arrived.notify_one();
  if (from != nullptr && --from->to_unpack == 0) progressed.notify_all();
}

void ShardReader::State::read_packed(const Task& task, std::unique_lock<std::mutex>& lock) {
  Packed& one = packed[task.packed];
  // Its place is free when the matrix that had it is unpacked.
  progressed.wait(lock, [&] {
    return stopping || task.packed < LoadingRing::packed_places ||
           packed[task.packed - LoadingRing::packed_places].to_unpack == 0;
  });
  if (stopping) return;
  lock.unlock();
  std::exception_ptr error;
  try {
    const TraceSpan span("read weights");
    read_chunk(one, task.chunk);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  if (error && !one.error) one.error = error;
  if (--one.to_read == 0) progressed.notify_all();
}

void ShardReader::State::stop() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  progressed.notify_all();
  for (std::thread& thread : threads) thread.join();
  threads.clear();
}

ShardReader::ShardReader(LoadingRing& ring, std::vector<Request> requests, int readers, PageCache cache,
                         NonFinite non_finite)
    : state_(std::make_unique<State>(ring, std::move(requests), cache, non_finite)) {
  State& s = *state_;
  const SafetensorsReader* advised = nullptr;
  for (std::size_t i = 0; i < s.requests.size(); ++i) {
    const Request& request = s.requests[i];
    if (std::exchange(advised, request.file) != request.file) request.file->expect_sequential();
    if (request.scales.empty())
      s.add_plain(i);
    else
      s.add_packed(i);
  }
  s.add_waiting_parts();
  s.arrivals.resize(ring.size());
  const bool in_place = std::any_of(s.requests.begin(), s.requests.end(), [](const Request& request) {
    return request.wide_to != nullptr || request.narrow_to != nullptr;
  });
  const int most = in_place ? LoadingRing::max_readers : LoadingRing::max_readers_through_ring;
  const std::size_t wanted = std::min(s.tasks.size(), static_cast<std::size_t>(std::clamp(readers, 1, most)));
  s.threads.reserve(wanted);
  while (s.threads.size() < wanted) {
    try {
      s.threads.emplace_back([&s] { s.work(); });
    } catch (const std::system_error&) {
      // The system has no more threads for us: fewer will do, none will not.
      if (s.threads.empty()) throw;
      break;
    }
    pthread_setname_np(s.threads.back().native_handle(), fmt::format("read-{}", s.threads.size()).c_str());
  }
}

ShardReader::~ShardReader() { state_->stop(); }

std::optional<WeightPiece> ShardReader::next() {
  State& s = *state_;
  SO_CHECK(s.given == s.released, "the piece before was not released");
  if (s.given == s.parts.size()) return std::nullopt;
  State::Arrival& arrival = s.arrivals[s.given % s.ring.size()];
  std::unique_lock lock(s.mutex);
  {
    const TraceSpan span("wait for weights", TraceKind::wait);
    s.arrived.wait(lock, [&] { return arrival.here; });
  }
  arrival.here = false;
  if (arrival.error) std::rethrow_exception(std::exchange(arrival.error, nullptr));
  s.bytes_given += s.parts[s.given].file_bytes;
  ++s.given;
  return arrival.piece;
}

void ShardReader::release(Stream& stream) {
  State& s = *state_;
  SO_CHECK(s.given == s.released + 1, "no piece to release");
  stream.record(*s.ring.slot(s.released).free);
  {
    const std::lock_guard lock(s.mutex);
    ++s.released;
  }
  s.progressed.notify_all();
}

std::uint64_t ShardReader::bytes_given() const { return state_->bytes_given; }
std::uint64_t ShardReader::total_bytes() const { return state_->total_bytes; }

}  // namespace so
