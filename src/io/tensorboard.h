// TensorBoard event files: scalars that `tensorboard --logdir OUTPUT_DIR/runs` shows while a run goes on.
//
// An event file is a sequence of TFRecords: length (u64), masked CRC-32C of the length, payload, masked CRC-32C of the
// payload, all little-endian. Payloads are tensorflow.Event messages (event.proto, summary.proto), encoded here by
// hand: a handful of fields does not ask for protobuf.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "io/file.h"
#include "io/metrics.h"

namespace so {

struct Scalar {
  std::string_view tag;  // "train/loss"
  float value = 0;
};

// CRC-32C (Castagnoli; RFC 3720, appendix B.4).
std::uint32_t crc32c(std::string_view bytes);
// The record that frames `payload`.
std::string tfrecord(std::string_view payload);
// Event messages; `wall_time` in seconds since 1970.
std::string file_version_event(double wall_time);  // first in every file
std::string session_start_event(double wall_time, std::int64_t step);
std::string scalars_event(double wall_time, std::int64_t step, std::span<const Scalar> scalars);

// Writes one event file, for one thread. Every event is one write(), so a viewer sees each step at once, and a kill
// cuts at most the last record short, which viewers pass over.
class TensorBoardWriter {
 public:
  // Creates "events.out.tfevents.<time>.<host>.<pid>.<n>" in `directory`, which is created if absent. A resumed run
  // gives the step it continues after: viewers then forget what earlier files in the directory say of later steps.
  explicit TensorBoardWriter(const std::filesystem::path& directory, std::optional<std::int64_t> resumed_after = {});

  const std::filesystem::path& path() const { return file_.path(); }
  void add(const StepMetrics& metrics);  // train/...
  void add(const EvalMetrics& metrics);  // eval/...
  void add_scalars(std::int64_t step, std::span<const Scalar> scalars);

 private:
  File file_;
};

}  // namespace so
