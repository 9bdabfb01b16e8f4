// Fetching from the Hugging Face hub, which its client does, in a process of its own.
#pragma once

#include <filesystem>
#include <string>

#include "base/hub_use.h"
#include "io/hub_cache.h"

namespace so {

// Of a model as many files as the use needs, of a data set those that the name says.
struct HubDownload {
  HubName name;
  HubUse use = HubUse::weights;
  std::filesystem::path cache;
};

// The command line that fetches it: "hf download Qwen/Qwen3-0.6B".
std::string hub_download_line(const HubDownload& download);

// Runs it: by the hf of PATH, or by a python3 that has huggingface_hub. Nothing of the working directory is run. What
// it says goes to standard error. Throws Error, beginning with `where`, if there is neither or if it fails.
void run_hub_download(const HubDownload& download, const std::string& where, bool talks);

}  // namespace so
