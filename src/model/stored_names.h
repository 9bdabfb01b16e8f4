// The names that tensors have in the files of a model. A parameter has the name of its text family everywhere else: in
// options, messages and optimizer state.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/family.h"
#include "model/spec.h"

namespace so {

class StoredNames {
 public:
  StoredNames() = default;                        // the same ones
  explicit StoredNames(const DecoderSpec& spec);  // of a text model by itself: the same ones
  StoredNames(const DecoderSpec& spec, const Wrapper& wrapper, const TextNames& text);

  std::string stored(std::string_view parameter) const;
  // The name of the parameter that a tensor of the text model is of; empty: it is none of the text model's.
  std::string parameter(std::string_view stored) const;
  // Whether a tensor is no parameter, but of another part of the model, a constant or of no use, which training leaves
  // as it is.
  bool carries(std::string_view stored) const;
  // Whether a tensor is of extra heads that predict further tokens from the text model's states. They are no part of
  // it, and fit it no longer when it has been trained.
  bool is_prediction_head(std::string_view stored) const;
  // Whether it is what the text model computes with and nothing trains.
  bool is_constant(std::string_view stored) const;
  // Whether it would be keys or values of a layer that attends to another's: files may have them.
  bool is_unused(std::string_view stored) const;

 private:
  const Wrapper* wrapper_ = nullptr;
  TextNames text_{.model = "model.", .lm_head = "lm_head."};
  std::vector<std::string> constants_;
  std::vector<std::string> unused_;
  std::int64_t layers_ = 0;  // of the model, where its files may have more
};

// The tensors of DecoderSpec::selection_biases by layer, as its family names them; empty for a layer without.
std::vector<std::string> selection_bias_names(const DecoderSpec& spec);

// All names that the files of such a model can have; the first are what transformers writes.
std::vector<StoredNames> possible_names(const DecoderSpec& spec);

// Whether files can have the experts stacked or one by one: ExpertSpec::stacked is what is usual, and the second
// function sets it to what they have, by what of the first layer with experts they contain.
bool has_either_expert_names(const DecoderSpec& spec);
void find_expert_names(DecoderSpec& spec, const std::function<bool(std::string_view)>& contains);

// Those that they have, by the embedding's. Throws Error that begins with `origin` if it has no known name.
StoredNames names_in_files(const DecoderSpec& spec, const std::function<bool(std::string_view)>& contains,
                           const std::string& origin);

}  // namespace so
