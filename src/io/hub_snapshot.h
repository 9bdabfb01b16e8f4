// Whether a snapshot of a Hugging Face cache (hub_cache.h) has the files that a command needs: a download may have been
// interrupted, or have been of a few files only.
#pragma once

#include <string>

#include "base/hub_use.h"
#include "io/hub_cache.h"

namespace so {

// What is missing, as people call it ("model-00002-of-00003.safetensors", "its weights"); empty if nothing is, as far
// as can be known. What the repository itself does not have is not missing. Of a data set the files at or below
// `inside` count, a path or a pattern, or if that is empty all.
std::string missing_of(const HubSnapshot& snapshot, HubUse use, const std::string& inside = {});

// Whether a download into the repository was interrupted, or goes on: it left files that have no name yet.
bool has_unfinished_files(const HubSnapshot& snapshot);

}  // namespace so
