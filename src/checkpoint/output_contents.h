// Sorts what lies in an output directory: files this program wrote, and files of others under names that a run writes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "io/own_files.h"

namespace so {

struct OutputContents {
  FileNames ours;
  // Files, links and directories that a run would write over, and that this program did not write.
  std::vector<std::string> foreign;
  bool recorded = false;  // the directory has a record; else `ours` goes by names and contents
};

// Looks into `directory`, which may be absent. With a record (io/own_files.h) that decides. Without one, as versions
// before the record left their directories, files are ours only under the exact names that it wrote, and with evidence:
// model.safetensors, shards and their index, and config.json beside a metrics.jsonl of this program, event files with
// this program's scalars, and what it puts into a checkpoint-<step> in one that holds its trainer_state.json.
// `auxiliary` is the directory whose small files a run copies beside its model, or empty: what has their names and
// other bytes is foreign too.
OutputContents look_into(const std::filesystem::path& directory, const std::filesystem::path& auxiliary);

// "metrics.jsonl, checkpoint-3 (7 files), runs (1 file)".
std::string describe(const FileNames& names);

// The names that HfModelWriter gives: model.safetensors, model-00001-of-00002.safetensors, the index.
bool is_weight_file_name(const std::string& name);

}  // namespace so
