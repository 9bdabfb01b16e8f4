// The large files of a checkpoint: its model's weights, fp32 weights, and moments as they are kept: in fp32, in bf16,
// or as 8-bit codes (optim/moment_blocks.h), of u8, with a tensor NAME + moment_scales_suffix of their blocks' scales,
// fp32.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/export.h"
#include "io/safetensors.h"

namespace so {

enum class StateArray : std::uint8_t;

class StateFiles {
 public:
  // As ModelExport. `step`: each file says of which step it is, so that a file of another checkpoint is known by more
  // than its checksum. `only_model`: there are no fp32 weights and moments.
  StateFiles(OffloadEngine& engine, const ModelFiles& source, const std::filesystem::path& directory,
             const std::filesystem::path& destination, std::int64_t step, bool only_model = false);

  // Writes this rank's slice of the bucket. Throws Divergence if it is not finite.
  void write_bucket(const Bucket& bucket);
  // Every bucket was written: completes the files.
  void finish();
  std::map<std::string, FileChecksum> checksums() const;  // after finish(); with one rank alone

  // Several ranks ask these (checkpoint/rank_files.h).
  std::map<std::string, std::uint64_t> files() const;  // by name, with their bytes
  std::uint64_t data_bytes() const, written_bytes() const;

 private:
  struct Array {
    StateArray array;
    DType dtype;
    const char* file;
    SafetensorsWriter writer;
  };
  void write(Array& array, const Bucket& bucket);
  // Writes values of a parameter from its `element` on, at which a block begins if they become codes.
  void write_values(Array& array, const std::string& name, std::int64_t element, std::span<const float> values);

  OffloadEngine& engine_;
  const std::filesystem::path destination_;
  ModelExport model_;
  std::vector<Array> arrays_;
};

}  // namespace so
