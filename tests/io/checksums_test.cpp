#include "io/checksums.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/xxh3.h"
#include "io/safetensors.h"
#include "support/io.h"

namespace so {
namespace {

using io_test::bytes_of;
using io_test::expect_error;
using io_test::read_file;
using io_test::TemporaryDirectory;
using io_test::write_file;

TEST(Checksums, TextRoundTrip) {
  const Checksums list{20, {{"config.json", {731, 0x0123456789abcdef}}, {"a b \"c\".safetensors", {0, 0}}}};
  EXPECT_EQ(parse_checksums(to_json(list), "list"), list);
  const Checksums of_a_model{std::nullopt, {{"config.json", {~std::uint64_t{0}, ~std::uint64_t{0}}}}};
  EXPECT_EQ(parse_checksums(to_json(of_a_model), "list"), of_a_model);
}

TEST(Checksums, AnythingElseIsRefusedByName) {
  const std::string good = R"({"format": 1, "algorithm": "XXH3", "step": 3,
    "files": {"a": {"bytes": 1, "xxh3": "0123456789abcdef"}, "b": {"bytes": 2, "xxh3": "ffffffffffffffff"}}})";
  EXPECT_EQ(parse_checksums(good, "list").files.size(), 2u);
  const std::vector<std::pair<std::string, std::string>> faults = {
      {"\"format\": 1", "\"format\": 2"},
      {"\"format\": 1,", ""},
      {"\"format\": 1", "\"format\": 1, \"format\": 1"},
      {"\"XXH3\"", "\"MD5\""},
      {"\"XXH3\"", "1"},
      {"\"step\": 3", "\"step\": -3"},
      {"\"step\": 3", "\"step\": 3.5"},
      {"\"step\": 3", "\"step\": 99999999999999999999"},
      {"\"step\": 3", "\"step\": 9999999999999999999"},
      {"\"step\": 3", "\"steps\": 3"},
      {"\"step\": 3", "\"step\": null"},
      {"\"bytes\": 1", "\"bytes\": -1"},
      {"\"bytes\": 1", "\"bytes\": \"1\""},
      {"\"bytes\": 1, ", ""},
      {"\"bytes\": 1", "\"bytes\": 1, \"bytes\": 1"},
      {"\"bytes\": 1", "\"bytes\": 1, \"md5\": \"x\""},
      {"0123456789abcdef", "0123456789abcde"},
      {"0123456789abcdef", "0123456789abcdefa"},
      {"0123456789abcdef", "0123456789abcdeg"},
      {"0123456789abcdef", "-123456789abcdef"},
      {"\"a\"", "\"b\""},
      {"\"a\"", "\"../a\""},
      {"\"a\"", "\"\""},
      {"\"a\"", "\"..\""},
      {"\"a\"", "\"x\\u0000y\""},
      {"\"files\": {", "\"files\": [{"},
      {"}}}", "}}"},
      {"}}}", "}}}}"},
  };
  for (const auto& [from, to] : faults) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    SCOPED_TRACE(bad);
    expect_error([&] { parse_checksums(bad, "the list"); }, {"the list: "});
  }
  for (const char* bad : {"", "[]", "null", "1", "{}", R"({"format": 1, "algorithm": "XXH3", "files": {}})"})
    expect_error([&] { parse_checksums(bad, "the list"); }, {"the list: "});
}

TEST(Checksums, EveryKindOfDamageIsFoundAndNamed) {
  TemporaryDirectory temporary;
  const auto& directory = temporary.path();
  const std::string text(3'000'000, 'x');
  write_file(directory / "large", text);
  for (const char* name : {"flipped", "longer", "missing", "directory", "fine"})
    write_file(directory / name, "content");
  write_file(directory / "empty", "");
  write_checksums(directory, {});
  const auto list = read_checksums(directory);
  ASSERT_TRUE(list);
  EXPECT_EQ(list->files.size(), 7u) << "not checksums.json itself";
  EXPECT_EQ(list->bytes(), text.size() + 35);
  std::uint64_t read = 0;
  EXPECT_TRUE(find_damage(directory, *list, [&](std::uint64_t bytes) { read = bytes; }).empty());
  EXPECT_EQ(read, list->bytes());

  std::string changed = text;
  changed[2'999'999] ^= 1;
  write_file(directory / "large", changed);
  write_file(directory / "flipped", "cnntent");
  write_file(directory / "longer", "content.");
  std::filesystem::remove(directory / "missing");
  std::filesystem::remove(directory / "directory");
  std::filesystem::create_directory(directory / "directory");
  const auto damage = find_damage(directory, *list);
  const std::vector<std::pair<std::string, std::string>> expected = {{"directory", "no regular file"},
                                                                     {"flipped", "checksum"},
                                                                     {"large", "checksum"},
                                                                     {"longer", "has 8 bytes, checksums.json says 7"},
                                                                     {"missing", "is missing"}};
  ASSERT_EQ(damage.size(), expected.size());
  for (std::size_t i = 0; i < damage.size(); ++i) {
    EXPECT_EQ(damage[i].file, expected[i].first);
    EXPECT_NE(damage[i].what.find(expected[i].second), std::string::npos) << damage[i].what;
  }
}

// Whatever order the pieces come in, the checksum is that of the file.
TEST(Checksums, WriterHashesWhatItWrites) {
  TemporaryDirectory temporary;
  const std::vector<TensorSpec> specs{{"a", DType::f32, {1000}}, {"b", DType::f32, {}}, {"c", DType::f32, {700}}};
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.5f;
  const auto all = std::as_bytes(std::span(values));
  const std::vector<std::vector<std::string>> orders = {{"a", "b", "c"}, {"c", "b", "a"}, {"b", "a", "c"}};
  for (std::size_t order = 0; order < orders.size(); ++order) {
    const auto path = temporary / std::to_string(order);
    SafetensorsWriter writer(path, specs, {{"step", "3"}});
    for (const std::string& name : orders[order]) {
      if (name == "b") {
        writer.write("b", 0, all.subspan(40, 4));
      } else if (name == "c") {
        writer.write("c", 1400, all.subspan(0, 1400));
        writer.write("c", 0, all.subspan(100, 1400));
      } else {
        for (std::size_t at = 0; at < 4000; at += 500) writer.write("a", at, all.subspan(at, 500));
      }
    }
    writer.finish();
    const std::string bytes = read_file(path);
    EXPECT_EQ(writer.checksum(), (FileChecksum{bytes.size(), xxh3(std::as_bytes(std::span(bytes)))})) << order;
    EXPECT_EQ(writer.checksum(), checksum_of_file(path));
  }
}

}  // namespace
}  // namespace so
