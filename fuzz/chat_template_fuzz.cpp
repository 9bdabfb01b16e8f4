// A model directory whose tokenizer_config.json is any bytes: its chat templates and named tokens are found, or an
// Error comes out. What an answer of the Python program may hold is chat_answer_fuzz's, what a record may,
// records_fuzz's.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "data/chat/chat_template.h"

namespace {

// Removed when the fuzzer ends.
struct Directory {
  Directory() {
    std::string name = (std::filesystem::temp_directory_path() / "superoffload-fuzz-XXXXXX").string();
    SO_CHECK(::mkdtemp(name.data()) != nullptr);
    path = name;
    file = ::open((path / "tokenizer_config.json").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    SO_CHECK(file >= 0);
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
  int file = -1;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Directory directory;
  SO_CHECK(::ftruncate(directory.file, 0) == 0);
  SO_CHECK(::pwrite(directory.file, data, size, 0) == static_cast<ssize_t>(size));
  try {
    if (const auto found = so::find_chat_template(directory.path)) {
      SO_CHECK(!found->source.empty());
      (void)found->fingerprint();
    }
  } catch (const so::Error&) {
  }
  return 0;
}
