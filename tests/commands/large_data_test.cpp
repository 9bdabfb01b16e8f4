// Memory while data is tokenised does not grow with its file.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "support/files.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/sanitized.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

// Conversations of about 2 KB, of which no two are the same.
void write_chats(const fs::path& path, std::size_t bytes) {
  std::ofstream out(path, std::ios::binary);
  std::string text;
  std::uint64_t state = 1;
  for (std::size_t written = 0; written < bytes; written += text.size()) {
    text = R"({"messages": [{"role": "user", "content": ")";
    for (int part = 0; part < 2; ++part) {
      for (int word = 0; word < (part == 0 ? 5 : 300); ++word) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        for (std::uint64_t letters = state >> 33; letters > 8; letters /= 26)
          text += static_cast<char>('a' + letters % 26);
        text += ' ';
      }
      text += part == 0 ? R"("}, {"role": "assistant", "content": ")" : "\"}]}\n";
    }
    out << text;
  }
}

// The largest resident set of any process that was waited for so far, in bytes.
std::size_t largest_child() {
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

TEST(LargeData, TakesNoMoreMemoryThanSmall) {
  if (sanitized) GTEST_SKIP() << "a sanitizer keeps what is freed";
  const TemporaryDirectory temporary;
  const fs::path tokenizer = fs::path(fixtures()) / "tokenizer" / "mistral", model = temporary / "model";
  fs::copy(model_fixture("mistral") / "model", model);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) fs::copy_file(tokenizer / file, model / file);
  fs::copy_file(fs::path(fixtures()) / "chat" / "templates" / "mistral.jinja", model / "chat_template.jinja");
  fs::remove(model / "model.safetensors");  // which a dry run does not need
  nlohmann::json config = read_json(model / "config.json");
  config["vocab_size"] = 1002;
  write_file(model / "config.json", config.dump());

  // The block of records that is worked on is 4,096 of them, 8 MB, so both files have several.
  std::size_t peak[2];
  const std::size_t megabytes[2] = {20, 140};
  for (int i = 0; i < 2; ++i) {
    const fs::path data = temporary / fmt::format("{}.jsonl", i);
    write_chats(data, megabytes[i] * 1000 * 1000);
    const Outcome o = run({binary(), "train", "--model", model.string(), "--data", data.string(), "--output_dir",
                           (temporary / "out").string(), "--max_length", "128", "--batch_size", "1", "--device", "cpu",
                           "--cache_dir", (temporary / "cache").string(), "--dry_run", "--quiet"},
                          temporary.path());
    ASSERT_EQ(o.exit_code, 0) << o.err;
    peak[i] = largest_child();
  }
  // Had the file or its token cache stayed mapped in memory, it would be 120 MB more, or 54. The same run's peak
  // differs by up to 30 MB: the kernel maps as much of the program's libraries as its page cache happens to hold.
  EXPECT_LT(peak[1], peak[0] + (45 << 20)) << peak[0] << " bytes of the smaller file";
}

}  // namespace
}  // namespace so::test
