// Repositories of the Hugging Face hub as its client (huggingface_hub) lays them out on this machine. Only read here:
//
//   CACHE/models--ORG--NAME/refs/REVISION         a commit, 40 hexadecimal digits
//                           snapshots/COMMIT/     the files, as links to ../../blobs/HASH
//                           trees/COMMIT.json     what files the commit has; from version 2 of the client on
//                           .no_exist/COMMIT/     empty files with the names of some that it does not have
//   CACHE/datasets--ORG--NAME/                    likewise
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace so {

enum class HubKind : std::uint8_t { model, dataset };

// ORG/NAME or ORG/NAME@REVISION; a data set's may have /PATH behind it, a file, directory or pattern in the repository.
struct HubName {
  HubKind kind = HubKind::model;
  std::string id;        // ORG/NAME
  std::string revision;  // a branch, a tag or a commit; empty: main
  std::string inside;    // PATH
};

// The repository that `text` may name, by the client's rules; none for what can only be a path ("./a/b", "a", "a/../b")
// or is called like a file of data ("data/train.jsonl").
std::optional<HubName> hub_name(std::string_view text, HubKind kind);

// Where the client keeps repositories, from the variables that it reads: HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME,
// XDG_CACHE_HOME; else ~/.cache/huggingface/hub. An absolute path.
using Environment = std::function<const char*(const char*)>;
std::filesystem::path hub_cache(const Environment& environment);

// Whether HF_HUB_OFFLINE, or TRANSFORMERS_OFFLINE, says that the hub is not to be asked.
bool hub_is_offline(const Environment& environment);

// CACHE/models--ORG--NAME, whether it is there or not.
std::filesystem::path hub_repository(const std::filesystem::path& cache, const HubName& name);

struct HubSnapshot {
  std::filesystem::path repository, directory;  // the latter is repository/snapshots/commit
  std::string commit;
};

// The snapshot of the name's revision; none if the cache lacks it. Throws Error where a reference is no commit, or a
// snapshot no directory of its own.
std::optional<HubSnapshot> find_hub_snapshot(const std::filesystem::path& cache, const HubName& name);

// A model's directory as people know it: ORG/NAME@COMMIT for a snapshot of a cache, any other as it is.
std::string title_of_model(const std::string& directory);

}  // namespace so
