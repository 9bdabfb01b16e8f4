#include "io/shard_reader.h"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "device/trace.h"

namespace so {
namespace {

constexpr std::size_t page = 4096;

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
// if it is in use.
struct SlotLayout {
  SlotLayout(DType stored, WeightForms forms, std::size_t slot_bytes)
      : has_wide(forms.wide || stored == DType::f32), has_narrow(forms.narrow || stored != DType::f32) {
    constexpr std::size_t whole = 128;  // elements: both parts begin at cache lines, and pieces of tensors too
    elements = slot_bytes / ((has_wide ? sizeof(float) : 0) + (has_narrow ? sizeof(bf16) : 0)) / whole * whole;
  }
  float* wide(void* slot) const { return static_cast<float*>(slot); }
  void* narrow(void* slot) const { return static_cast<float*>(slot) + (has_wide ? elements : 0); }

  bool has_wide, has_narrow;
  std::size_t elements = 0;  // that a slot has room for
};

}  // namespace

LoadingRing::LoadingRing(Device& device, std::size_t slot_bytes) : slots_(2 * max_readers) {
  SO_CHECK(slot_bytes > 0 && slot_bytes % page == 0, "slots of {} bytes", slot_bytes);
  for (Slot& slot : slots_) {
    slot.memory = device.allocate(MemoryKind::pinned, slot_bytes, "loading ring");
    slot.free = device.create_event();
  }
}

std::size_t LoadingRing::slot_bytes_for(std::int64_t elements) {
  constexpr std::size_t share = 16, largest = std::size_t{4} << 20;
  const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(bf16) / share / (2 * max_readers);
  return std::clamp(bytes / page * page, page, largest);
}

struct ShardReader::State {
  struct Part {
    std::size_t request = 0;
    std::size_t begin = 0, size = 0;  // elements of the tensor
  };
  struct Arrival {
    bool here = false;
    WeightPiece piece;
    std::exception_ptr error;
  };

  State(LoadingRing& r, std::vector<Request> q, PageCache c) : ring(r), requests(std::move(q)), cache(c) {}

  void read_ahead();
  WeightPiece read(const Part& part, void* slot) const;
  void stop();

  LoadingRing& ring;
  const std::vector<Request> requests;
  const PageCache cache;
  std::vector<SlotLayout> layouts;  // per request
  std::vector<Part> parts;          // part i uses slot i, going round
  std::uint64_t total_bytes = 0;

  std::mutex mutex;  // guards what follows
  std::condition_variable arrived, released_one;
  std::vector<Arrival> arrivals;  // per slot
  std::size_t claimed = 0;        // parts that a thread has taken on
  std::size_t given = 0;          // parts given to the caller
  std::size_t released = 0;       // parts that the caller has released
  bool stopping = false;

  std::uint64_t bytes_given = 0;  // the caller's thread's
  std::vector<std::thread> threads;
};

WeightPiece ShardReader::State::read(const Part& part, void* slot) const {
  const Request& request = requests[part.request];
  const SlotLayout& layout = layouts[part.request];
  const DType stored = request.file->info(request.tensor).dtype;
  float* const wide = layout.wide(slot);
  void* const raw = stored == DType::f32 ? wide : layout.narrow(slot);
  const std::size_t n = part.size, bytes = n * size_of(stored);
  const std::uint64_t offset = part.begin * size_of(stored);
  try {
    request.file->read_into(request.tensor, offset, {static_cast<std::byte*>(raw), bytes});
  } catch (const Error& error) {
    fail("tensor '{}': {}", request.tensor, error.what());
  }
  if (cache == PageCache::drop) request.file->drop_cache(request.tensor, offset, bytes);

  auto* const narrow = static_cast<bf16*>(layout.narrow(slot));
  if (stored == DType::bf16 && request.forms.wide)
    for (std::size_t i = 0; i < n; ++i) wide[i] = narrow[i];
  if (stored == DType::f32 && request.forms.narrow)
    for (std::size_t i = 0; i < n; ++i) narrow[i] = bf16(wide[i]);
  if (stored == DType::f16) {
    auto* const halves = static_cast<std::uint16_t*>(raw);
    if (request.forms.wide)
      for (std::size_t i = 0; i < n; ++i) wide[i] = widen_f16(halves[i]);
    if (request.forms.narrow)
      for (std::size_t i = 0; i < n; ++i) halves[i] = bf16::round(widen_f16(halves[i]));
  }
  WeightPiece piece;
  piece.begin = request.at + static_cast<std::int64_t>(part.begin);
  if (request.forms.wide) piece.wide = {wide, n};
  if (request.forms.narrow) piece.narrow = {narrow, n};
  return piece;
}

void ShardReader::State::read_ahead() {
  std::unique_lock lock(mutex);
  while (!stopping && claimed < parts.size()) {
    const std::size_t turn = claimed++;
    released_one.wait(lock, [&] { return stopping || turn < released + ring.size(); });
    if (stopping) return;
    lock.unlock();
    Arrival arrival;
    arrival.here = true;
    try {
      LoadingRing::Slot& slot = ring.slot(turn);
      slot.free->synchronize();
      const TraceSpan span("read weights");
      arrival.piece = read(parts[turn], slot.memory.data());
    } catch (...) {
      arrival.error = std::current_exception();
    }
    lock.lock();
    arrivals[turn % ring.size()] = std::move(arrival);
    arrived.notify_one();
  }
}

void ShardReader::State::stop() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  released_one.notify_all();
  for (std::thread& thread : threads) thread.join();
  threads.clear();
}

ShardReader::ShardReader(LoadingRing& ring, std::vector<Request> requests, int readers, PageCache cache)
    : state_(std::make_unique<State>(ring, std::move(requests), cache)) {
  State& s = *state_;
  const SafetensorsReader* advised = nullptr;
  for (std::size_t i = 0; i < s.requests.size(); ++i) {
    const Request& request = s.requests[i];
    const TensorInfo& info = request.file->info(request.tensor);
    SO_CHECK(info.dtype == DType::f32 || info.dtype == DType::bf16 || info.dtype == DType::f16, "'{}' is {}",
             request.tensor, name_of(info.dtype));
    if (std::exchange(advised, request.file) != request.file) request.file->expect_sequential();
    s.total_bytes += info.bytes();
    const std::size_t elements = static_cast<std::size_t>(info.bytes()) / size_of(info.dtype);
    s.layouts.emplace_back(info.dtype, request.forms, ring.slot_bytes());
    const std::size_t piece = s.layouts.back().elements;
    for (std::size_t begin = 0; begin < elements; begin += piece)
      s.parts.push_back({i, begin, std::min(piece, elements - begin)});
  }
  s.arrivals.resize(ring.size());
  const std::size_t wanted =
      std::min(s.parts.size(), static_cast<std::size_t>(std::clamp(readers, 1, LoadingRing::max_readers)));
  s.threads.reserve(wanted);
  while (s.threads.size() < wanted) {
    try {
      s.threads.emplace_back([&s] { s.read_ahead(); });
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
  const State::Part& part = s.parts[s.given];
  State::Arrival& arrival = s.arrivals[s.given % s.ring.size()];
  std::unique_lock lock(s.mutex);
  {
    const TraceSpan span("wait for weights", TraceKind::wait);
    s.arrived.wait(lock, [&] { return arrival.here; });
  }
  arrival.here = false;
  if (arrival.error) std::rethrow_exception(std::exchange(arrival.error, nullptr));
  ++s.given;
  s.bytes_given += part.size * size_of(s.requests[part.request].file->info(s.requests[part.request].tensor).dtype);
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
  s.released_one.notify_all();
}

std::uint64_t ShardReader::bytes_given() const { return state_->bytes_given; }
std::uint64_t ShardReader::total_bytes() const { return state_->total_bytes; }

}  // namespace so
