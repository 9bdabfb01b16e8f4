// Where each parameter lies. All parameters of a model, in the order the forward pass uses them, form one flat range of
// elements; weights, gradients and optimizer state are arrays over that range, and buckets are pieces of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor.h"

namespace so {

// A parameter as the engine knows it; it knows nothing of models.
struct Parameter {
  std::string name;                 // as in the checkpoint; distinct
  std::vector<std::int64_t> shape;  // one to three dimensions
  bool decay = true;                // takes weight decay
  int unit = 0;                     // the step of the forward pass that first uses it: embedding, layers, head
  bool joined = false;              // follows its predecessor without a gap, so that both read as one matrix
  bool trained = true;              // false: frozen, so that it has neither optimizer state nor a gradient
  double lr_multiplier = 1;         // times the learning rate of a step
  // Elements of a block, for number formats that store a scale for each: buckets and ranks' slices cut the parameter
  // at whole blocks from its beginning. A multiple of ParameterLayout::alignment; 1: the format has no blocks.
  std::int64_t cut = 1;

  std::int64_t size() const {
    std::int64_t n = 1;
    for (const auto d : shape) n *= d;
    return n;
  }
};

// A half-open range of elements of the flat range.
struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// The elements of both; of none the size is not positive.
inline Range common(Range a, Range b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

// Whether the forward pass begins with this unit, and the backward pass ends with it.
constexpr bool begins_pass(int unit) { return unit == 0; }

// The units that stay on the device, whatever is done with the others: the first and the last hold embeddings, which
// are large, and used at both ends of a step where they are tied.
constexpr bool unit_stays(int unit, int units) { return begins_pass(unit) || unit == units - 1; }

class ParameterLayout {
 public:
  // Parameters start at multiples of this many elements, unless joined: a cache line of bf16.
  static constexpr std::int64_t alignment = 64;

  // Units count from 0 and must neither decrease nor leave one out; a frozen parameter that is joined to a trained one
  // must begin and end at a multiple of `alignment`, and one that has blocks must begin at one. Throws Bug otherwise.
  explicit ParameterLayout(std::vector<Parameter> parameters);

  int count() const { return static_cast<int>(parameters_.size()); }
  const Parameter& parameter(int index) const { return parameters_[static_cast<std::size_t>(index)]; }
  std::span<const Parameter> parameters() const { return parameters_; }
  Range range(int index) const { return ranges_[static_cast<std::size_t>(index)]; }
  int units() const { return static_cast<int>(unit_ranges_.size()); }
  Range unit_range(int unit) const { return unit_ranges_[static_cast<std::size_t>(unit)]; }  // padding included
  int unit_of(std::int64_t element) const;
  // Whether the unit's weights and gradients always stay on the device.
  bool stays(int unit) const { return unit_stays(unit, units()); }
  std::pair<int, int> unit_parameters(int unit) const {
    return unit_parameters_[static_cast<std::size_t>(unit)];
  }                                                                        // [first, last)
  std::int64_t elements() const { return elements_; }                      // padding included
  std::int64_t parameter_elements() const { return parameter_elements_; }  // without padding
  int find(std::string_view name) const;                                   // -1 when there is none
  // The same of parameters that are trained.
  std::int64_t trained_elements() const { return trained_elements_; }                      // padding included
  std::int64_t trained_elements(int unit) const;                                           // of a unit
  std::int64_t trained_parameter_elements() const { return trained_parameter_elements_; }  // without padding
  bool trains_any(int first, int count) const;                                             // of these parameters
  bool has_frozen() const { return trained_parameter_elements_ < parameter_elements_; }
  bool has_frozen(int unit) const { return trained_elements(unit) < unit_range(unit).size(); }
  // The lowest unit with a trained parameter: no backward pass goes below it. units() when all is frozen.
  int first_trained_unit() const;
  // The first parameter that ends behind `element`; count() when there is none.
  int first_ending_after(std::int64_t element) const;
  // The last place up to `element` at which the flat range may be cut: the element itself, unless it lies inside a
  // parameter's block, or inside one of `block` elements, which divide `alignment` or are a multiple, from the
  // parameter's beginning. A parameter whose blocks do not begin at a multiple of `alignment`, since it is joined, is
  // not cut.
  std::int64_t cut_before(std::int64_t element, std::int64_t block = 1) const;
  // Elements of the longest range that may not be cut: a bucket is at least as long. A multiple of `alignment`.
  std::int64_t longest_uncut(std::int64_t block) const;
  // The block of 8-bit moments (optim/moment_blocks.h) that the element belongs to, and how many of the block's
  // elements lie before it. Blocks count over all parameters; padding belongs to what follows.
  struct BlockPlace {
    std::int64_t index = 0, offset = 0;
  };
  BlockPlace block_at(std::int64_t element) const;
  // The range with all elements of the blocks that it has elements of.
  Range whole_blocks(Range range) const;
  // Blocks of a range that cuts none.
  std::int64_t blocks(Range range) const { return block_at(range.end).index - block_at(range.begin).index; }

  // The view of a parameter, of its own shape; or of `count` joined parameters, first to last: [rows of all, columns],
  // or [elements] for vectors. In an array over the flat range that begins at `flat`; or of parameters that begin at
  // `data`.
  Tensor view(void* flat, DType dtype, int first, int count = 1) const;
  Tensor view_at(void* data, DType dtype, int first, int count = 1) const;

  // A part of a unit whose parameters are all trained, or all frozen. Padding belongs to what lies before it.
  struct Stretch {
    Range range;
    bool trained = true;
  };
  std::vector<Stretch> stretches(int unit) const;  // in order, without gaps
  // The parts of a unit for which there is memory for gradients: trained parameters, and those that are joined to
  // one, since the gradient of joined parameters is one matrix. In order, neighbours merged.
  std::vector<Range> gradient_ranges(int unit) const;

  // A run of elements of trained parameters with the same weight decay and learning rate, without padding, inside
  // `range`.
  struct Run {
    Range range;
    bool decay = true;
    double lr_multiplier = 1;
  };
  std::vector<Run> runs(Range range) const;

 private:
  std::vector<Parameter> parameters_;
  std::vector<Range> ranges_, unit_ranges_;
  std::vector<std::int64_t> first_blocks_;  // by parameter, and that behind the last
  std::vector<int> by_name_;                // parameters in the order of their names
  std::vector<std::pair<int, int>> unit_parameters_;
  std::vector<std::int64_t> trained_by_unit_;
  std::int64_t elements_ = 0, parameter_elements_ = 0, trained_elements_ = 0, trained_parameter_elements_ = 0;
};

}  // namespace so
