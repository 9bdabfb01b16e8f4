#include "io/shard_reader.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "device/trace.h"
#include "io/part_reader.h"

namespace so {
namespace {

constexpr std::size_t page = 4096;

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

  struct Part : TensorPart {
    std::uint64_t file_bytes = 0;  // that count as read with it
    std::size_t packed = none;     // the matrix it is unpacked from
  };
  struct Arrival {
    bool here = false;
    WeightPiece piece;
    std::exception_ptr error;
  };
  // A quantised matrix. Matrix i lies in the ring's packed place i, going round.
  struct Packed : PackedMatrix {
    std::size_t to_read = 0;    // chunks; these are guarded by the mutex
    std::size_t to_unpack = 0;  // parts
    std::exception_ptr error;   // of its reading
  };
  // A thread takes on one of these at a time: a part, or a chunk of a packed matrix to be read. The work that a task
  // waits for comes before it in the list, or is done by the caller.
  struct Task {
    std::size_t part = none;  // part i uses slot i, going round
    std::size_t packed = none, chunk = 0;
  };

  State(LoadingRing& r, std::vector<Request> q, PageCache cache, NonFinite non_finite)
      : ring(r), requests(std::move(q)), reader(requests, ring.slot_bytes(), cache, non_finite) {}

  void add_plain(std::size_t request);
  void add_packed(std::size_t request);
  void add_waiting_parts();

  void work();
  void give(std::size_t turn, std::unique_lock<std::mutex>& lock);
  void read_packed(const Task& task, std::unique_lock<std::mutex>& lock);
  void stop();

  LoadingRing& ring;
  const std::vector<Request> requests;
  const PartReader reader;
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
  const std::size_t piece = reader.elements_at_once(request);
  for (std::size_t begin = first; begin < last; begin += piece) {
    const std::size_t size = std::min(piece, last - begin);
    tasks.push_back({.part = parts.size()});
    parts.push_back({{request, begin, size}, size * width});
  }
}

// The chunks of a matrix stand before the parts of the matrix before it, so that reading is ahead.
void ShardReader::State::add_packed(std::size_t request) {
  const Request& r = requests[request];
  const Mxfp4Matrix shape = matrix_of(r);
  const std::size_t count = static_cast<std::size_t>(r.file->info(r.tensor).shape[0]);
  total_bytes += r.file->info(r.tensor).bytes() + r.scales_file->info(r.scales).bytes();
  const auto rows = static_cast<std::size_t>(shape.rows), columns = static_cast<std::size_t>(shape.columns);
  if (rows == 0 || columns == 0) return;
  const std::size_t bytes = shape.blocks_bytes() + shape.scales_bytes(), room = reader.elements_at_once(request);
  SO_CHECK(bytes <= ring.packed(0).size(), "'{}': {} bytes in a place of {}", r.tensor, bytes, ring.packed(0).size());
  // Whole rows of the result, if a slot holds one; whole blocks of them, if it holds those.
  std::size_t rows_at_once = room / rows;
  if (rows_at_once > Mxfp4Matrix::block) rows_at_once -= rows_at_once % Mxfp4Matrix::block;
  const std::size_t piece = rows_at_once > 0 ? rows_at_once * rows : room;
  for (std::size_t i = 0; i < count; ++i) {
    Packed one;
    one.request = request, one.index = i;
    one.matrix = shape;
    one.place = ring.packed(packed.size());
    one.matrix.blocks = one.place.data();
    one.matrix.scales = reinterpret_cast<const std::uint8_t*>(one.matrix.blocks + shape.blocks_bytes());
    one.to_read = PartReader::chunks_of(shape);
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
      waiting_parts.push_back({{request, i * end + begin, size}, read - accounted, packed.size()});
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
      arrival.piece = reader.read(part, slot.memory.data());
    } else if (!unread) {
      const TraceSpan span("unpack weights");
      arrival.piece = reader.unpack(part, from->matrix, slot.memory.data());
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
    reader.read_chunk(one, task.chunk);
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
