#include "io/tensorboard.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file_system.h"

namespace so {
namespace {

static_assert(std::endian::native == std::endian::little,
              "records are little-endian and written as they are in memory");

constexpr std::array<std::uint32_t, 256> crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}();

// TFRecord rotates and shifts checksums, so that data that holds checksums itself is not a trivial case for them.
std::uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

// Protocol buffers' wire format: a key (field number and wire type), then the value.
enum class Wire : std::uint64_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, std::uint64_t field, Wire wire) {
  put_varint(out, (field << 3) | static_cast<std::uint64_t>(wire));
}

void put_bytes(std::string& out, std::uint64_t field, std::string_view bytes) {
  put_key(out, field, Wire::bytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// Event: wall_time = 1 (double), step = 2 (int64; proto3 leaves a zero out), then one of the others.
std::string event_head(double wall_time, std::int64_t step) {
  std::string event;
  put_key(event, 1, Wire::fixed64);
  put(event, wall_time);
  if (step != 0) {
    put_key(event, 2, Wire::varint);
    put_varint(event, static_cast<std::uint64_t>(step));
  }
  return event;
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

File create_event_file(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) fail_io("create directory", directory, error.value());
  if (is_link_path(directory))
    fail("{} is a link, and nothing is written through links; remove it, or choose another --output_dir",
         printable_path(directory));
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') std::strcpy(host.data(), "localhost");
  static std::atomic<unsigned> counter{0};  // two files of one process in one second
  return File::create_new(directory / fmt::format("events.out.tfevents.{:010d}.{}.{}.{}",
                                                  static_cast<std::int64_t>(now()), host.data(), ::getpid(),
                                                  counter.fetch_add(1)));
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xffffffffu;
  for (const char c : bytes) crc = (crc >> 8) ^ crc_table[(crc ^ static_cast<unsigned char>(c)) & 0xffu];
  return ~crc;
}

std::string tfrecord(std::string_view payload) {
  std::string record;
  record.reserve(payload.size() + 16);
  put(record, std::uint64_t{payload.size()});
  put(record, masked_crc(record));
  record += payload;
  put(record, masked_crc(payload));
  return record;
}

std::string file_version_event(double wall_time) {
  std::string event = event_head(wall_time, 0);
  put_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string session_start_event(double wall_time, std::int64_t step) {
  std::string event = event_head(wall_time, step);
  std::string session_log;
  put_key(session_log, 1, Wire::varint);  // status
  put_varint(session_log, 1);             // START
  put_bytes(event, 7, session_log);
  return event;
}

std::string scalars_event(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, 1, scalar.tag);
    put_key(value, 2, Wire::fixed32);  // simple_value
    put(value, scalar.value);
    put_bytes(summary, 1, value);
  }
  std::string event = event_head(wall_time, step);
  put_bytes(event, 5, summary);
  return event;
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& directory) : file_(create_event_file(directory)) {
  file_.write_all(std::string_view(tfrecord(file_version_event(now()))));
}

void TensorBoardWriter::truncate_after(std::int64_t step) {
  // Viewers drop what has a step not below that of the start of a session.
  writer_.append(file_, tfrecord(session_start_event(now(), step + 1)));
}

void TensorBoardWriter::step(const StepMetrics& m) {
  std::vector<Scalar> values = {
      {"train/loss", static_cast<float>(m.loss)},
      {"train/grad_norm", static_cast<float>(m.grad_norm)},
      {"train/clip", static_cast<float>(m.clip)},
      {"train/learning_rate", static_cast<float>(m.lr)},
      {"train/epoch", static_cast<float>(m.epoch)},
      {"train/skipped", m.skipped ? 1.0f : 0.0f},
      {"train/step_time_s", static_cast<float>(m.step_time_s)},
      {"train/tokens_per_s", static_cast<float>(m.tokens_per_s)},
      {"train/model_tflops", static_cast<float>(m.model_tflops)},
      {"train/reference_tflops", static_cast<float>(m.reference_tflops)},
      {"train/host_memory_bytes", static_cast<float>(m.host_memory_bytes)},
      {"train/device_memory_bytes", static_cast<float>(m.device_memory_bytes)},
      {"overlap/efficiency", static_cast<float>(m.overlap.efficiency)},
  };
  std::vector<std::string> tags;
  const NamedSeconds &device = m.overlap.device_seconds, &host = m.overlap.host_seconds;
  for (const auto& [name, seconds] : device) tags.push_back("overlap/device_" + name + "_s");
  for (const auto& [name, seconds] : host) tags.push_back("overlap/host_" + name + "_s");
  for (std::size_t i = 0; i < tags.size(); ++i) {
    const double seconds = i < device.size() ? device[i].second : host[i - device.size()].second;
    values.push_back({tags[i], static_cast<float>(seconds)});
  }
  scalars(m.step, values);
}

void TensorBoardWriter::evaluation(std::int64_t step, double loss) {
  const Scalar values[] = {{"eval/loss", static_cast<float>(loss)}};
  scalars(step, values);
}

void TensorBoardWriter::summary(std::int64_t step, std::span<const PlannedFigure> figures) {
  std::vector<std::string> tags;
  for (const PlannedFigure& f : figures) tags.push_back("plan/" + f.name);
  std::vector<Scalar> values;
  for (std::size_t i = 0; i < tags.size(); ++i)
    values.push_back({tags[i], static_cast<float>(figures[i].difference())});
  scalars(step, values);
}

void TensorBoardWriter::scalars(std::int64_t step, std::span<const Scalar> values) {
  writer_.append(file_, tfrecord(scalars_event(now(), step, values)));
}

}  // namespace so
