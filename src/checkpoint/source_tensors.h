// Which tensors of a model directory hold which parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/hf_directory.h"
#include "io/shard_reader.h"
#include "model/stored_names.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

class ParameterFiles {
 public:
  // A tensor that repeats a parameter under another name, as some files with a tied output projection have one.
  struct Copy {
    std::string name;
    int parameter = 0;
  };
  // A tensor that is copied as it is (StoredNames::carries()).
  struct Carried {
    const SafetensorsReader* file = nullptr;
    std::string tensor;
    bool constant = false, prediction_head = false;
    const TensorInfo& info() const { return file->info(tensor); }
  };

  // A parameter is a tensor of its name, as `names` has it in files, and of its shape, in f32, bf16 or f16. Or, if it
  // is a matrix, it may be in FP8 (checkpoint/fp8_tensors.h). Or, if it has three dimensions [experts, columns, rows],
  // it may be quantised in MXFP4: NAME_blocks [experts, rows, columns / 32, 16] and NAME_scales [experts, rows, columns
  // / 32], both u8. `copies` are the copies there may be; they are read and must equal their parameters. Throws Error
  // naming file and tensor if one is missing, there in both ways, of another shape or dtype, differs from what it
  // copies, or belongs to no parameter and is not carried; `model` is who it should belong to.
  ParameterFiles(const HfDirectory& directory, const ParameterLayout& layout, const std::vector<Copy>& copies,
                 const std::string& model, const StoredNames& names = {});

  // The requests that read all of them, in the order of the files, with the `forms` of what is stored.
  std::vector<ShardReader::Request> requests(const std::function<WeightForms(DType stored)>& forms) const;

  const std::string& name_of(int parameter) const { return names_[static_cast<std::size_t>(parameter)]; }  // in files
  const std::vector<Copy>& copies() const { return copies_; }       // those that are there
  const std::vector<Carried>& carried() const { return carried_; }  // in the order of the files
  int quantised() const { return quantised_; }                      // parameters in MXFP4
  int in_fp8() const { return in_fp8_; }                            // parameters
  int input_scales() const { return input_scales_; }                // tensors of FP8's that are left out
  std::uint64_t bytes() const;                                      // of what is read

 private:
  std::vector<std::string> names_;              // by parameter
  std::vector<ShardReader::Request> requests_;  // without forms
  std::vector<Copy> copies_;
  std::vector<Carried> carried_;
  int quantised_ = 0, in_fp8_ = 0, input_scales_ = 0;
};

// The stored size of the largest matrix of a layout that may be stored in MXFP4.
std::size_t largest_packed_bytes(const ParameterLayout& layout);

}  // namespace so
