// TensorBoard event files: scalars that `tensorboard --logdir OUTPUT_DIR/runs` shows while a run goes on.
//
// An event file is a sequence of TFRecords: length (u64), masked CRC-32C of the length, payload, masked CRC-32C of the
// payload, all little-endian. Payloads are tensorflow.Event messages (event.proto, summary.proto), encoded here by
// hand: a handful of fields does not ask for protobuf.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"
#include "io/metrics.h"
#include "io/record_file.h"

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
// cuts at most the last record short, which viewers pass over. Values are stored in fp32, as TensorBoard has them;
// metrics.jsonl has every digit.
class TensorBoardWriter {
 public:
  // Creates "events.out.tfevents.<time>.<host>.<pid>.<n>" in `directory`, which is created if absent.
  explicit TensorBoardWriter(const std::filesystem::path& directory);

  const std::filesystem::path& path() const { return file_.path(); }
  void step(const StepMetrics& metrics);            // train/loss, ..., overlap/efficiency, ...
  void evaluation(std::int64_t step, double loss);  // eval/loss
  // plan/step_seconds, ...: the difference from the plan as a share of it.
  void summary(std::int64_t step, std::span<const PlannedFigure> figures);
  void scalars(std::int64_t step, std::span<const Scalar> values);

  // Whether an event could not be written; it was reported then.
  bool lost_any() const { return writer_.lost_any(); }

  // For a resumed run: makes viewers forget what the files in this directory so far say of steps after `step`.
  void truncate_after(std::int64_t step);

 private:
  File file_;
  RecordWriter writer_;
};

}  // namespace so
