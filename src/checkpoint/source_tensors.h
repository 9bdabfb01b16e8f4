// Which tensors of a model directory hold which parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/hf_directory.h"
#include "io/shard_reader.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

class ParameterFiles {
 public:
  // A tensor that repeats a parameter under another name, as some files with a tied output projection have one.
  struct Copy {
    std::string name;
    int parameter = 0;
  };

  // A parameter is a tensor of its name and shape, in f32, bf16 or f16. Or, if it has three dimensions
  // [experts, columns, rows], it may be quantised in MXFP4: NAME_blocks [experts, rows, columns / 32, 16] and
  // NAME_scales [experts, rows, columns / 32], both u8. `copies` are the copies there may be; they are read and must
  // equal their parameters. Throws Error naming file and tensor if one is missing, there in both ways, of another shape
  // or dtype, differs from what it copies, or belongs to no parameter; `model` is who it should belong to.
  ParameterFiles(const HfDirectory& directory, const ParameterLayout& layout, const std::vector<Copy>& copies,
                 const std::string& model);

  // The requests that read all of them, in the order of the files, with the `forms` of what is stored.
  std::vector<ShardReader::Request> requests(const std::function<WeightForms(DType stored)>& forms) const;

  const std::vector<Copy>& copies() const { return copies_; }  // those that are there
  int quantised() const { return quantised_; }                 // parameters in MXFP4
  std::uint64_t bytes() const;                                 // of what is read

 private:
  std::vector<ShardReader::Request> requests_;  // without forms
  std::vector<Copy> copies_;
  int quantised_ = 0;
};

// The stored size of the largest matrix of a layout that may be stored in MXFP4.
std::size_t largest_packed_bytes(const ParameterLayout& layout);

}  // namespace so
