// From a data file to a TokenDataset, through a cache on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "data/example.h"
#include "data/text_encoder.h"
#include "data/token_cache.h"

namespace so {

struct DatasetOptions {
  std::filesystem::path file;  // see records.h for what it may hold
  ExampleOptions example;
  // Where token caches are kept. Empty: $XDG_CACHE_HOME/superoffload, else ~/.cache/superoffload; and if that cannot be
  // written, fallback_directory (a temporary one, say) with a warning. A directory named here has no fallback.
  std::filesystem::path cache_directory;
  std::filesystem::path fallback_directory;
  std::string name = "data";  // what the log calls it
};

// A data file on its way to a TokenDataset.
//
// The cache's name and key come from the file's content (not its name or time), the encoder's fingerprint, vocabulary
// and end token, max_length, train_on_prompt and kTemplateVersion, for conversations also from the chat template and
// mask_history, for a table from the program that reads it. So whatever changes an example makes another cache, while a
// copied or touched file finds the old one. Reading the content for that costs one pass at memory or disk speed. A
// damaged cache, or one of another layout, is made again, with a line in the log. Who may not read the data file may
// not read its cache.
//
// Records are parsed and tokenised by `pool` in blocks; the result, and which record is blamed first, do not depend on
// the number of threads. Memory in use, with that of mapped files, is a block's and 16 bytes a document (for moments
// twice that). After 2 seconds a progress line says how far it is. The log gets one line with the counts: records,
// tokens, truncated and dropped records.
//
// Several processes may do this at once, over a shared directory too: one makes the cache, the others wait for it.
//
// Every member throws Error ("FILE:LINE: ...") for a malformed record, a file that mixes formats, a file without any
// record, or without a trained token, and for a cache directory that cannot be used, when it finds that out.
class DatasetSource {
 public:
  // Opens the file and looks for its token cache. Makes no file, only the cache's directory. `encoder` and `pool` must
  // outlive it.
  DatasetSource(DatasetOptions options, const TextEncoder& encoder, ThreadPool& pool);
  ~DatasetSource();
  DatasetSource(DatasetSource&&) noexcept;

  const std::string& name() const;  // the data file's
  // The token cache that open() will write, if none that is valid is there.
  bool makes_cache() const;
  const std::filesystem::path& cache() const;
  // An upper limit of its bytes, from the sizes of the records: tokens are counted when they are made.
  std::uint64_t most_cache_bytes();
  // Its bytes, counted by tokenising everything, which takes as long as making it; the second call is free.
  std::uint64_t count_cache_bytes();

  // Opens the cache, making it first if need be. Once.
  TokenDataset open();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// All of it at once.
TokenDataset open_dataset(DatasetOptions options, const TextEncoder& encoder, ThreadPool& pool);

}  // namespace so
