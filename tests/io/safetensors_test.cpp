#include "io/safetensors.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "support/child_process.h"
#include "support/io.h"

namespace so {
namespace {

using io_test::bytes_of;
using io_test::expect_error;
using io_test::fixture;
using io_test::read_file;
using io_test::TemporaryDirectory;
using io_test::write_file;

template <class T>
std::vector<T> read(const SafetensorsReader& reader, std::string_view name) {
  std::vector<T> values(reader.info(name).bytes() / sizeof(T));
  reader.read_into(name, std::as_writable_bytes(std::span(values)));
  return values;
}

std::vector<float> read_bf16(const SafetensorsReader& reader, std::string_view name) {
  const auto raw = read<bf16>(reader, name);
  return {raw.begin(), raw.end()};
}

// A file of the given header text and as many data bytes as asked for.
std::string file_of(std::string_view header, std::size_t data_bytes) {
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  file += header;
  file.append(data_bytes, '\x01');
  return file;
}

using Shape = std::vector<std::int64_t>;

// mixed.safetensors was written by the reference implementation; tests/fixtures/io/make_fixtures.py has its values.
TEST(SafetensorsReader, ReadsWhatTheReferenceWrote) {
  const SafetensorsReader reader(fixture("mixed.safetensors"));
  EXPECT_EQ(reader.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"note", "é\t"}}));
  EXPECT_EQ(reader.names().size(), 11u);
  EXPECT_EQ(reader.data_bytes(), 88u);
  EXPECT_EQ(reader.info("f32").shape, (Shape{2, 3}));
  EXPECT_EQ(reader.info("f32").dtype, DType::f32);
  EXPECT_EQ(read<float>(reader, "f32"), (std::vector<float>{0, 0.25f, 0.5f, 0.75f, 1, 1.25f}));
  EXPECT_EQ(reader.info("bf16").dtype, DType::bf16);
  EXPECT_EQ(read_bf16(reader, "bf16"), (std::vector<float>{-2, -1, 0, 1, 2}));
  EXPECT_EQ(reader.info("f16").dtype, DType::f16);
  EXPECT_EQ(read<std::uint16_t>(reader, "f16"), (std::vector<std::uint16_t>{0, 0x3000, 0x3400, 0x3600}));
  EXPECT_EQ(read<std::int32_t>(reader, "i32"), (std::vector<std::int32_t>{-1, 2147483647}));
  EXPECT_EQ(read<std::int64_t>(reader, "i64"), (std::vector<std::int64_t>{INT64_MIN, 7}));
  EXPECT_EQ(read<std::uint8_t>(reader, "u8"), (std::vector<std::uint8_t>{1, 2, 255}));
  EXPECT_EQ(reader.info("scalar").shape, Shape{});
  EXPECT_EQ(read<float>(reader, "scalar"), std::vector<float>{3.5f});
  EXPECT_EQ(reader.info("empty").shape, (Shape{0, 4}));
  EXPECT_TRUE(reader.bytes("empty").empty());
  EXPECT_EQ(read<float>(reader, "größe/\"quoted\"\n"), std::vector<float>{1.0f});
}

TEST(SafetensorsReader, MapsAndReadsTheSameBytes) {
  const SafetensorsReader reader(fixture("mixed.safetensors"));
  const auto mapped = reader.bytes("f32");
  const auto whole = read<std::byte>(reader, "f32");
  EXPECT_TRUE(std::equal(mapped.begin(), mapped.end(), whole.begin(), whole.end()));
  std::vector<float> part(2);
  reader.read_into("f32", 4, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, (std::vector<float>{0.25f, 0.5f}));
  expect_error<Bug>([&] { reader.read_into("f32", 20, std::as_writable_bytes(std::span(part))); },
                    {"bytes [20, +8) of 24"});
  expect_error<Bug>([&] { reader.read_into("f32", std::as_writable_bytes(std::span(part))); }, {"24 bytes into 8"});
  reader.drop_cache();
  EXPECT_EQ(read<float>(reader, "scalar"), std::vector<float>{3.5f});
}

TEST(SafetensorsReader, RefusesForeignElementTypesOnlyWhenAskedForThem) {
  SafetensorsReader reader(fixture("mixed.safetensors"));
  EXPECT_TRUE(reader.contains("bool"));
  EXPECT_FALSE(reader.contains("absent"));
  EXPECT_EQ(reader.find("absent"), nullptr);
  expect_error([&] { reader.info("absent"); }, {"mixed.safetensors", "no tensor 'absent'"});
  expect_error([&] { reader.find("bool"); }, {"'bool'", "BOOL", "not supported"});
  expect_error([&] { reader.bytes("f64"); }, {"'f64'", "F64"});
  const SafetensorsReader moved(std::move(reader));
  EXPECT_EQ(read<float>(moved, "scalar"), std::vector<float>{3.5f});
}

// The verdicts of safetensors 0.8.0, whose deserialize() was given the same headers; but it takes the last of two equal
// keys of "__metadata__", and of two tensors of one name, where this program refuses.
TEST(SafetensorsReader, ReadsHeadersAsTheFormatsLibraryDoes) {
  const std::string begin = R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4])", tensor = begin.substr(1) + "}";
  for (const std::string& header :
       {R"({"__metadata__":null,)" + tensor + "}", "{" + tensor + R"(,"__metadata__":null})", begin + R"(,"x":1}})",
        begin + R"(,"x":null,"y":true,"z":-1,"w":"u"}})", begin + R"(,"x":123456789012345678901234567890}})",
        begin + R"(,"x":1,"x":2}})", begin + R"(,"x":)" + std::string(100, '[') + std::string(100, ']') + "}}",
        std::string(
            R"({"t":{"x":{"dtype":[1,{"z":null}],"w":1.5e3},"dtype":"F32","shape":[1],"data_offsets":[0,4]}})")}) {
    SCOPED_TRACE(header);
    const auto read_header = parse_safetensors_header(header, 4, "f");
    ASSERT_EQ(read_header.entries.size(), 1u);
    EXPECT_EQ(read_header.entries[0].info.name, "t");
    EXPECT_EQ(read_header.entries[0].info.shape, Shape{1});
    EXPECT_TRUE(read_header.metadata.empty());
  }
  for (const std::string& header :
       {R"({"__metadata__":null,"__metadata__":{},)" + tensor + "}", R"({"__metadata__":{"a":null},)" + tensor + "}",
        R"({"__metadata__":"x",)" + tensor + "}", R"({"x":null,)" + tensor + "}", std::string(R"({"t":null})"),
        begin + R"(,"x":)" + std::string(200, '[') + std::string(200, ']') + "}}", begin + R"(,"x":)",
        begin + R"(,"x":[}})"}) {
    SCOPED_TRACE(header);
    EXPECT_THROW(parse_safetensors_header(header, 4, "f"), Error);
  }
  for (const char* dtype : {"F31", "f32", "F3_NEW", ""})
    expect_error(
        [&] {
          parse_safetensors_header(
              R"({"x":{"dtype":")" + std::string(dtype) + R"(","shape":[7],"data_offsets":[0,5]}})", 5, "f");
        },
        {"f: tensor 'x' has the dtype '" + std::string(dtype) + "', which safetensors does not have"});
}

struct Damage {
  const char* header;
  std::size_t data_bytes;
  const char* message;
};

TEST(SafetensorsReader, RefusesDamagedHeaders) {
  const Damage cases[] = {
      {"", 0, "not a JSON object"},
      {"[]", 0, "not a JSON object"},
      {" {}", 0, "not a JSON object"},
      {"{", 0, "not valid JSON at byte"},
      {"{} x", 0, "not valid JSON at byte"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},})", 1, "not valid JSON at byte"},
      {"{\"a\xff\":{}}", 0, "not valid JSON at byte"},
      {R"({"a":1})", 0, "tensor 'a' may not be an integer"},
      {R"({"a":null})", 0, "tensor 'a' may not be null"},
      {R"({"a":[]})", 0, "tensor 'a' may not be an array"},
      {R"({"a":{"b":{}}})", 0, "tensor 'a' has no dtype"},
      {R"({"a":{"dtype":1}})", 0, "the dtype of tensor 'a' may not be an integer"},
      {R"({"a":{"dtype":"U8","shape":1}})", 0, "the shape of tensor 'a' may not be an integer"},
      {R"({"a":{"dtype":"U8","shape":[[1]]}})", 0, "the shape of tensor 'a' may not be an array"},
      {R"({"a":{"dtype":"U8","shape":[{}]}})", 0, "the shape of tensor 'a' may not be an object"},
      {R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "the shape of tensor 'a' may not be a negative"},
      {R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, "a number with a fraction"},
      {R"({"a":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}})", 1, "a number with a fraction, an exponent"},
      {R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})", 1, "that large"},
      {R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}})", 1, "too many digits"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,1]}})", 1, "overflows"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", 0, "overflows"},
      {R"({"a":{"dtype":"I64","shape":[1152921504606846976],"data_offsets":[0,0]}})", 0, "overflows"},
      {R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, "tensor 'a' has no dtype"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "tensor 'a' has no shape"},
      {R"({"a":{"dtype":"U8","shape":[1]}})", 1, "tensor 'a' has no data_offsets"},
      {R"({"a":{"dtype":"U8","dtype":"U8"}})", 1, "tensor 'a' has the key 'dtype' twice"},
      {R"({"a":{"dtype":"U8","shape":[1],"shape":[1]}})", 1, "the key 'shape' twice"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "has 1 numbers, not two"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}})", 1, "more than two"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "tensor 'a' appears twice"},
      {R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[1,0]}})", 1, "ends at byte 0, before it begins at 1"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1, "ends at byte 2 of 1 data bytes"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2,
       "leaving a hole after the end of the one before it, 0"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "tensor 'b' begins at byte 1, overlapping"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 2, "the tensors end at byte 1, the data at 2"},
      {"{}", 1, "the tensors end at byte 0, the data at 1"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
       "has 4 bytes, but its shape and dtype F32 ask for 8"},
      {R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2, "does not end at a whole byte"},
      {R"({"__metadata__":[]})", 0, "__metadata__ may not be an array"},
      {R"({"__metadata__":{"k":1}})", 0, "__metadata__ key 'k' may not be an integer"},
      {R"({"__metadata__":{"k":"1","k":"2"}})", 0, "__metadata__ has the key 'k' twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__ appears twice"},
  };
  TemporaryDirectory directory;
  for (const Damage& damage : cases) {
    SCOPED_TRACE(damage.header);
    write_file(directory / "x.safetensors", file_of(damage.header, damage.data_bytes));
    expect_error([&] { SafetensorsReader{directory / "x.safetensors"}; }, {"x.safetensors", damage.message});
  }
}

TEST(SafetensorsReader, RefusesBytesHiddenBehindANul) {
  using namespace std::string_view_literals;
  expect_error([] { parse_safetensors_header("{}\0garbage"sv, 0, "file"); }, {"file: not valid JSON at byte 2"});
}

TEST(SafetensorsReader, AcceptsWhatTheFormatAllows) {
  EXPECT_TRUE(parse_safetensors_header("{}", 0, "f").entries.empty());
  EXPECT_TRUE(parse_safetensors_header("{}      ", 0, "f").entries.empty());  // padded
  // Entries in another order than their bytes, and an empty tensor between two others.
  const auto header = parse_safetensors_header(
      R"({"b":{"data_offsets":[1,3],"dtype":"U8","shape":[2]},"e":{"dtype":"F32","shape":[0],"data_offsets":[1,1]},)"
      R"("a":{"dtype":"U8","shape":[1,1],"data_offsets":[0,1]}})",
      3, "f");
  ASSERT_EQ(header.entries.size(), 3u);
  EXPECT_EQ(header.entries[0].info.name, "a");
  EXPECT_EQ(header.entries[1].info.name, "e");
  EXPECT_EQ(header.entries[2].info.name, "b");
}

TEST(SafetensorsReader, RefusesBadLengths) {
  TemporaryDirectory directory;
  const auto path = directory / "x.safetensors";
  const auto with_length = [&](std::uint64_t length) {
    std::string file = file_of("{}", 0);
    std::memcpy(file.data(), &length, 8);
    write_file(path, file);
  };
  with_length(100'000'001);
  expect_error([&] { SafetensorsReader{path}; }, {"100000001 bytes", "not a safetensors file"});
  with_length(UINT64_MAX);
  expect_error([&] { SafetensorsReader{path}; }, {"not a safetensors file"});
  with_length(3);
  expect_error([&] { SafetensorsReader{path}; }, {"the header has 3 bytes, the file only 2", "cut short"});
  write_file(path, "1234567");
  expect_error([&] { SafetensorsReader{path}; }, {"7 bytes is too short"});
}

TEST(SafetensorsReader, RefusesEveryTruncation) {
  TemporaryDirectory directory;
  const std::string whole = read_file(fixture("mixed.safetensors"));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write_file(directory / "cut", std::string_view(whole).substr(0, length));
    EXPECT_THROW(SafetensorsReader{directory / "cut"}, Error) << length;
  }
  write_file(directory / "cut", whole + "x");
  EXPECT_THROW(SafetensorsReader{directory / "cut"}, Error);
}

// Whatever a flipped bit in the header does, it is an Error or leaves a file whose tensors tile the data. Every third
// bit: each byte, and each place in a byte.
TEST(SafetensorsReader, SurvivesFlippedBitsOfTheHeader) {
  const std::string whole = read_file(fixture("mixed.safetensors"));
  std::uint64_t length = 0;
  std::memcpy(&length, whole.data(), 8);
  const std::string header = whole.substr(8, length);
  const std::uint64_t data_bytes = whole.size() - 8 - length;
  int refused = 0;
  int flips = 0;
  for (std::size_t i = 0; i < header.size() * 8; i += 3, ++flips) {
    std::string damaged = header;
    damaged[i / 8] = static_cast<char>(damaged[i / 8] ^ (1 << (i % 8)));
    try {
      std::uint64_t position = 0;
      for (const auto& entry : parse_safetensors_header(damaged, data_bytes, "f").entries) {
        ASSERT_EQ(entry.info.begin, position);
        position = entry.info.end;
      }
      ASSERT_EQ(position, data_bytes);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, flips / 2);  // about: all but flips inside names
}

// A header of nothing but brackets or digits must cost memory like its own length, and no stack.
TEST(SafetensorsReader, RefusesDeepNesting) {
  std::string deep = R"({"a":{"dtype":"U8","shape":)" + std::string(5'000'000, '[');
  expect_error([&] { parse_safetensors_header(deep, 0, "f"); }, {"the shape of tensor 'a' may not be an array"});
  deep = R"({"a":)" + std::string(1'000'000, '{');
  expect_error([&] { parse_safetensors_header(deep, 0, "f"); }, {"not valid JSON"});
}

// Same tensors, same order, same metadata as the reference implementation had for plain.safetensors: same bytes.
TEST(SafetensorsWriter, WritesWhatTheReferenceWrites) {
  const SafetensorsReader reference(fixture("plain.safetensors"));
  std::vector<TensorSpec> specs;
  for (const std::string& name : reference.names()) {
    specs.push_back({name, reference.info(name).dtype, reference.info(name).shape});
  }
  TemporaryDirectory directory;
  SafetensorsWriter writer(directory / "x.safetensors", specs, reference.metadata());
  EXPECT_EQ(writer.data_bytes(), reference.data_bytes());
  for (const std::string& name : reference.names()) writer.write(name, 0, reference.bytes(name));
  writer.finish();
  EXPECT_EQ(read_file(directory / "x.safetensors"), read_file(fixture("plain.safetensors")));
}

TEST(SafetensorsWriter, TakesPiecesFromManyThreadsInAnyOrder) {
  TemporaryDirectory directory;
  const auto path = directory / "x.safetensors";
  constexpr int tensors = 7, elements = 1003;
  std::vector<TensorSpec> specs;
  std::vector<std::vector<float>> values(tensors);
  for (int t = 0; t < tensors; ++t) {
    specs.push_back({"t" + std::to_string(t), DType::f32, {elements}});
    values[static_cast<std::size_t>(t)].resize(elements);
    std::iota(values[static_cast<std::size_t>(t)].begin(), values[static_cast<std::size_t>(t)].end(),
              1000.0f * static_cast<float>(t));
  }
  SafetensorsWriter writer(path, specs, {{"format", "pt"}});
  std::vector<std::thread> threads;
  for (std::size_t worker = 0; worker < 4; ++worker) {
    threads.emplace_back([&, worker] {
      // Pieces of 17 elements, dealt to the workers in turn, from the back.
      constexpr std::size_t piece = 17;
      for (std::size_t i = (elements + piece - 1) / piece; i-- > 0;) {
        if (i % 4 != worker) continue;
        for (std::size_t t = 0; t < tensors; ++t) {
          const std::size_t count = std::min(piece, elements - i * piece);
          writer.write(specs[t].name, i * piece * 4, std::as_bytes(std::span(values[t]).subspan(i * piece, count)));
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  writer.finish();
  const SafetensorsReader reader(path);
  for (std::size_t t = 0; t < tensors; ++t) EXPECT_EQ(read<float>(reader, specs[t].name), values[t]);
}

TEST(SafetensorsWriter, AlignsTensorsToTheirElements) {
  TemporaryDirectory directory;
  const auto path = directory / "x.safetensors";
  const std::vector<TensorSpec> specs{{"u8", DType::u8, {3}},   {"b2", DType::bf16, {1}}, {"f", DType::f32, {1}},
                                      {"b1", DType::bf16, {2}}, {"i64", DType::i64, {}},  {"none", DType::f32, {3, 0}}};
  SafetensorsWriter writer(path, specs, {});
  for (const auto& spec : specs) writer.write(spec.name, 0, bytes_of(std::vector<std::byte>(spec.bytes())));
  writer.finish();
  const SafetensorsReader reader(path);
  EXPECT_TRUE(reader.metadata().empty());
  EXPECT_EQ(reader.names(), (std::vector<std::string>{"i64", "f", "none", "b2", "b1", "u8"}));
  for (const auto& name : reader.names()) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(reader.bytes(name).data()) % size_of(reader.info(name).dtype), 0u)
        << name;
  }
}

TEST(SafetensorsWriter, NoticesWhatWasNotWrittenOrTwice) {
  TemporaryDirectory directory;
  const auto path = directory / "x.safetensors";
  const std::vector<std::byte> four(4);
  SafetensorsWriter writer(path, {{"a", DType::u8, {12}}}, {});
  expect_error<Bug>([&] { writer.write("b", 0, bytes_of(four)); }, {"b is not in the plan"});
  expect_error<Bug>([&] { writer.write("a", 9, bytes_of(four)); }, {"bytes [9, +4) of 12"});
  expect_error<Bug>([&] { writer.write("a", UINT64_MAX, bytes_of(four)); }, {"of 12"});
  writer.write("a", 4, bytes_of(four));
  for (const std::uint64_t offset : {1, 3, 4, 5, 7}) {
    expect_error<Bug>([&] { writer.write("a", offset, bytes_of(four)); }, {"written twice"});
  }
  writer.write("a", 0, bytes_of(four));
  expect_error<Bug>([&] { writer.write("a", 2, bytes_of(four)); }, {"written twice"});
  expect_error<Bug>([&] { writer.finish(); }, {"8 of 12 bytes of a"});
  writer.write("a", 8, bytes_of(four));
  writer.finish();
  expect_error<Bug>([&] { writer.write("a", 8, bytes_of(four)); }, {"after finish()"});
  expect_error<Bug>(
      [&] {
        SafetensorsWriter(path, {{"a", DType::u8, {1}}, {"a", DType::u8, {1}}}, {});
      },
      {"tensor a twice"});
  expect_error([&] { SafetensorsWriter(path, {{"\xff", DType::u8, {1}}}, {}); }, {"not valid UTF-8"});
}

// As ranks write one: each has a writer of its own, of which one creates the file.
TEST(SafetensorsWriter, SeveralWriteOneFile) {
  TemporaryDirectory directory;
  const std::vector<TensorSpec> specs{{"a", DType::f32, {1000}}, {"b", DType::bf16, {77}}};
  std::vector<float> a(1000);
  std::iota(a.begin(), a.end(), 1.0f);
  const std::vector<bf16> b(77, bf16(3.0f));
  const std::map<std::string, std::string> metadata{{"step", "7"}};
  SafetensorsWriter alone(directory / "alone", specs, metadata);
  alone.write("a", 0, std::as_bytes(std::span(a)));
  alone.write("b", 0, std::as_bytes(std::span(b)));
  alone.finish();

  const auto path = directory / "shared";
  expect_error([&] { SafetensorsWriter(path, specs, metadata, FileWriters::other_of_several); },
               {"cannot open", "shared"});
  SafetensorsWriter first(path, specs, metadata, FileWriters::first_of_several),
      other(path, specs, metadata, FileWriters::other_of_several);
  expect_error(
      [&] {
        SafetensorsWriter(path, {{"a", DType::f32, {1001}}}, {}, FileWriters::other_of_several);
      },
      {"shared", "not all processes write the same file"});
  other.write("a", 400, std::as_bytes(std::span(a).subspan(100)));
  first.write("b", 0, std::as_bytes(std::span(b)));
  first.write("a", 0, std::as_bytes(std::span(a).first(100)));
  first.finish();
  other.finish();
  EXPECT_EQ(first.written_bytes(), 400u + 154u);
  EXPECT_EQ(first.written_bytes() + other.written_bytes(), first.data_bytes());
  EXPECT_EQ(read_file(path), read_file(directory / "alone"));
  EXPECT_EQ(checksum_of_file(path), alone.checksum());
  EXPECT_EQ(other.file_bytes(), std::filesystem::file_size(path));
  expect_error<Bug>([&] { static_cast<void>(first.checksum()); }, {"one of several writers"});
}

TEST(SafetensorsWriter, FailsBeforeTheFirstWriteWhenTheDiskIsFull) {
  TemporaryDirectory directory;
  const std::vector<TensorSpec> large{{"weight", DType::f32, {1 << 20}}};
  const std::string full = io_test::run_in_child([&]() -> std::string {
    if (!io_test::mount_small_file_system(directory.path(), 1 << 16)) return "no mount";
    SafetensorsWriter(directory / "x.safetensors", large, {});
    return "no failure";
  });
  if (full != "no mount") {
    EXPECT_EQ(full.find("threw: no space left on " + (directory / "x.safetensors").string() + ": needs 4.2 MB, "), 0u)
        << full;
  }
  const std::string limited = io_test::run_in_child([&]() -> std::string {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 16, 1 << 16};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return "setrlimit";
    SafetensorsWriter(directory / "x.safetensors", large, {});
    return "no failure";
  });
  EXPECT_EQ(limited.find("threw: cannot write " + (directory / "x.safetensors").string() + " (4.2 MB): File too large"),
            0u)
      << limited;
}

}  // namespace
}  // namespace so
