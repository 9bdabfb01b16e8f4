// Writes the engine's weights as a Hugging Face model directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/number_formats.h"
#include "io/hf_directory.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

class Communicator;
class ModelFiles;
class OffloadEngine;

// Streams bucket by bucket, so that the engine may go on as soon as it has passed a bucket (OffloadEngine::gate()).
class ModelExport {
 public:
  // Writes weights, in the format in which the engine's are to be exported, under the names and in the shapes of
  // `source`, a tied embedding also under a second name if it has one there; tensors that `source` carries, byte for
  // byte; config.json with that dtype noted; and the auxiliary files. What was quantised is written as the rest. Claims
  // the space for the weights in `directory`, in files of at most `max_shard_bytes` of tensors (but for a tensor that
  // is larger). `destination` is what messages call the directory, which may have a temporary name until it is whole.
  // With several ranks each has one, rank 0 before the others: it makes the files. `on_failure`: as for
  // HfDirectory::copy_auxiliary_files().
  ModelExport(OffloadEngine& engine, const ModelFiles& source, const std::filesystem::path& directory,
              const std::filesystem::path& destination, std::uint64_t max_shard_bytes = default_max_shard_bytes,
              const HfDirectory::CopyFailure& on_failure = {});

  // Writes this rank's slice of the bucket. Throws Divergence if a weight is not finite.
  void write_bucket(const Bucket& bucket);
  // Every bucket was written: copies what `source` carries, which rank 0 does, and completes the files. Throws Error if
  // the source's files changed since they were opened.
  void finish();
  // Returns the checksums of the weight files. Call it after finish(), with one rank only.
  std::map<std::string, FileChecksum> checksums() const { return writer_.checksums(); }

  // Several ranks ask these (checkpoint/rank_files.h). The weights' files, by name with their bytes.
  std::map<std::string, std::uint64_t> files() const { return writer_.files(); }
  std::uint64_t data_bytes() const { return writer_.total_bytes(); }
  std::uint64_t written_bytes() const { return writer_.written_bytes(); }

 private:
  void copy_carried();

  OffloadEngine& engine_;
  const ModelFiles& source_;
  const std::filesystem::path destination_;
  HfModelWriter writer_;
};

// For each parameter that meets `range`: body(parameter index, range of elements inside the parameter, the same in the
// flat range).
void for_each_part(const ParameterLayout& layout, Range range,
                   const std::function<void(int parameter, Range inside, Range flat)>& body);

// Tensors of `layout` as files list them: of all parameters, and of those that are trained.
std::vector<TensorSpec> tensor_specs(const ParameterLayout& layout, DType dtype);
std::vector<TensorSpec> trained_specs(const ParameterLayout& layout, DType dtype);

// config.json with "dtype" or "torch_dtype", whichever it uses ("dtype" if neither), set to `dtype`, likewise in a
// "text_config", which then need not have it beside; and without "quantization_config", since weights are written
// unquantised; everything else and its order kept.
std::string config_with_dtype(const std::string& config_json, DType dtype);

// Bytes of the tensors that export_model() writes. Without a source, as where a dry run has no weights, those of the
// layout, to which a source may add a second name of a tied embedding.
std::uint64_t exported_bytes(const ModelFiles& source, DType exported);
std::uint64_t exported_bytes(const ParameterLayout& layout, DType exported);

// Bytes that a checkpoint of `parameters` trained parameters holds beside its model: fp32 masters unless the model is
// exported in fp32, and two moments, with scales of full blocks where they are in 8 bits.
std::uint64_t state_file_bytes(std::int64_t parameters, const NumberFormats& formats);

// Puts the engine's weights, as they are now, into `directory` itself, beside checkpoints and metrics: first under a
// temporary name, then file by file, config.json last. Throws Divergence, and changes nothing, if a weight is not
// finite. A collective of the engine's ranks, which throw together (ranks/together.h): each writes its slices.
void export_model(OffloadEngine& engine, const ModelFiles& source, const std::filesystem::path& directory,
                  std::uint64_t max_shard_bytes = default_max_shard_bytes);

// The same with the weights that `checkpoint` holds, whose files are copied and compared with their checksums. Rank 0
// does it; all throw together.
void export_checkpoint_model(const std::filesystem::path& checkpoint, Communicator& ranks, const ModelFiles& source,
                             DType exported, const std::filesystem::path& directory);

// Moves the files of a finished model out of `staged`, on the same file system, into `directory`, config.json last.
// They are recorded as ours (io/own_files.h) before they appear; recorded weight files that the model does not have go.
void put_model_into(const std::filesystem::path& staged, const std::filesystem::path& directory);

}  // namespace so
