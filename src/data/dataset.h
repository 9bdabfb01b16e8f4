// From a data file to a TokenDataset, through a cache on disk.
#pragma once

#include <cstdint>
#include <filesystem>
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

// Opens the file's token cache, making it first if there is none.
//
// The cache's name and key come from the file's content (not its name or time), the encoder's fingerprint, vocabulary
// and end token, max_length, train_on_prompt and kTemplateVersion. So whatever changes an example
// makes another cache, while a copied or touched file finds the old one. Reading the content for that costs one pass at
// memory or disk speed. A damaged cache, or one of another layout, is made again, with
// a line in the log. Who may not read the data file may not read its cache.
//
// Records are parsed and tokenised by `pool` in blocks; the result, and which record is blamed first, do not depend on
// the number of threads. Memory in use is a block's, plus 16 bytes a document. After 2 seconds a progress line says how
// far it is. The log gets one line with the counts: records, tokens, truncated and dropped records.
//
// Several processes may call this at once, over a shared directory too: one makes the cache, the others wait for it.
//
// Throws Error ("FILE:LINE: ...") for a malformed record, a file that mixes formats, a file without any record, or
// without a trained token, and for a cache directory that cannot be used.
TokenDataset open_dataset(const DatasetOptions& options, const TextEncoder& encoder, ThreadPool& pool);

}  // namespace so
