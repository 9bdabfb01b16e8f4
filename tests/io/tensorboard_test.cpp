#include "io/tensorboard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "support/io.h"

namespace so {
namespace {

using io_test::expect_error;
using io_test::fixture;
using io_test::read_file;
using io_test::TemporaryDirectory;

// RFC 3720, appendix B.4, and the check value of the CRC catalogue.
TEST(Crc32c, MatchesPublishedVectors) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string ascending, descending;
  for (int i = 0; i < 32; ++i) {
    ascending += static_cast<char>(i);
    descending += static_cast<char>(31 - i);
  }
  EXPECT_EQ(crc32c(ascending), 0x46dd794eu);
  EXPECT_EQ(crc32c(descending), 0x113fdb5cu);
}

// events.golden: made by TensorBoard's own writer from the same values (tests/fixtures/io/make_fixtures.py).
TEST(TensorBoard, EncodesAsTensorBoardDoes) {
  const Scalar one[] = {{"train/loss", 2.5f}};
  const Scalar three[] = {
      {"train/loss", 0.0f}, {"train/grad_norm", std::numeric_limits<float>::infinity()}, {"größe", -1.0e-7f}};
  const std::string tag(300, 'x');
  const Scalar long_tag[] = {{tag, 1.0f}};
  const std::string records =
      tfrecord(file_version_event(1700000000.5)) + tfrecord(session_start_event(1700000001.0, 301)) +
      tfrecord(scalars_event(1700000002.25, 0, one)) + tfrecord(scalars_event(1700000002.25, 5'000'000'000, three)) +
      tfrecord(scalars_event(1700000002.25, 300, long_tag));
  EXPECT_EQ(records, read_file(fixture("events.golden")));
}

// The payloads of a file of records, each checked as a viewer would.
std::vector<std::string> payloads_of(const std::string& file) {
  std::vector<std::string> payloads;
  for (std::size_t at = 0; at < file.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, file.data() + at, 8);
    payloads.push_back(file.substr(at + 12, length));
    EXPECT_EQ(file.substr(at, 16 + length), tfrecord(payloads.back()));
    at += 16 + length;
  }
  return payloads;
}

// From the tag's first byte: the float that follows a tag in a summary.
float value_after(const std::string& payload, const std::string& tag) {
  const auto at = payload.find(tag + '\x15');
  if (at == payload.npos) return std::numeric_limits<float>::quiet_NaN();
  float value = 0;
  std::memcpy(&value, payload.data() + at + tag.size() + 1, 4);
  return value;
}

TEST(TensorBoard, WritesAFileThatBeginsWithItsVersion) {
  TemporaryDirectory output;
  TensorBoardWriter writer(output / "runs");
  StepMetrics step;
  step.step = 3;
  step.loss = 1.25;
  step.grad_norm = 2;
  step.lr = 0.5;
  step.tokens_per_s = 1000;
  step.overlap = {.efficiency = 0.5, .device_seconds = {{"work", 3}}, .host_seconds = {{"adamw", 2}, {"place", 4}}};
  writer.step(step);
  writer.evaluation(3, 0.75);
  const std::vector<PlannedFigure> figures{{"step_seconds", 2, 2.5}};
  writer.summary(3, figures);
  EXPECT_EQ(writer.path().filename().string().find("events.out.tfevents."), 0u);
  const auto payloads = payloads_of(read_file(writer.path()));  // while it is open: every event is there at once
  ASSERT_EQ(payloads.size(), 4u);
  EXPECT_NE(payloads[0].find("brain.Event:2"), std::string::npos);
  EXPECT_EQ(value_after(payloads[1], "train/loss"), 1.25f);
  EXPECT_EQ(value_after(payloads[1], "train/grad_norm"), 2.0f);
  EXPECT_EQ(value_after(payloads[1], "train/learning_rate"), 0.5f);
  EXPECT_EQ(value_after(payloads[1], "train/tokens_per_s"), 1000.0f);
  EXPECT_EQ(value_after(payloads[1], "overlap/efficiency"), 0.5f);
  EXPECT_EQ(value_after(payloads[1], "overlap/device_work_s"), 3.0f);
  EXPECT_EQ(value_after(payloads[1], "overlap/host_adamw_s"), 2.0f);
  EXPECT_EQ(value_after(payloads[1], "overlap/host_place_s"), 4.0f);
  EXPECT_EQ(value_after(payloads[2], "eval/loss"), 0.75f);
  EXPECT_EQ(value_after(payloads[3], "plan/step_seconds"), 0.25f);
}

TEST(TensorBoard, ResumesInAFileOfItsOwn) {
  TemporaryDirectory output;
  const TensorBoardWriter first(output / "runs");
  TensorBoardWriter second(output / "runs");
  second.truncate_after(300);
  EXPECT_NE(first.path(), second.path());
  const auto payloads = payloads_of(read_file(second.path()));
  ASSERT_EQ(payloads.size(), 2u);
  // All but the time: nine bytes.
  EXPECT_EQ(payloads[1].substr(9), session_start_event(0, 301).substr(9));
  io_test::write_file(output / "file", "x");
  expect_error([&] { TensorBoardWriter{output / "file/runs"}; }, {"cannot create directory", "file/runs"});
}

}  // namespace
}  // namespace so
