#include "data/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

namespace so {
namespace {

struct Segment {
  std::size_t begin;
  std::size_t end;
  bool delimiter;
};

void merge_adjacent(std::vector<Segment>& segments, SplitBehavior behavior) {
  std::vector<Segment> merged;
  bool previous = false;  // whether the segment handled before is a delimiter
  const auto add = [&](const Segment& segment, bool joins) {
    if (joins && !merged.empty()) {
      merged.back().begin = std::min(merged.back().begin, segment.begin);
      merged.back().end = std::max(merged.back().end, segment.end);
    } else {
      merged.push_back(segment);
    }
    previous = segment.delimiter;
  };
  switch (behavior) {
    case SplitBehavior::Contiguous:
      for (const Segment& segment : segments) add(segment, segment.delimiter == previous);
      break;
    case SplitBehavior::MergedWithPrevious:
      for (const Segment& segment : segments) add(segment, segment.delimiter && !previous);
      break;
    case SplitBehavior::MergedWithNext:
      std::reverse(segments.begin(), segments.end());
      for (const Segment& segment : segments) add(segment, segment.delimiter && !previous);
      std::reverse(merged.begin(), merged.end());
      break;
    case SplitBehavior::Removed:
    case SplitBehavior::Isolated:
      return;
  }
  segments = std::move(merged);
}

}  // namespace

PreTokenizer::PreTokenizer(std::vector<SplitStep> steps, bool add_prefix_space, bool use_regex,
                           const std::string& where, bool fast)
    : add_prefix_space_(add_prefix_space) {
  for (const SplitStep& step : steps) {
    steps_.push_back(
        {fast && step.is_regex ? fast_split_for(step.pattern, step.behavior == SplitBehavior::Isolated) : nullptr,
         step.is_regex ? SplitPattern::regex(step.pattern, step.where)
                       : SplitPattern::literal(step.pattern, step.where),
         step.behavior, step.invert});
  }
  if (use_regex) {
    last_.push_back({fast ? fast_split_for(gpt2_split_pattern) : nullptr,
                     SplitPattern::regex(gpt2_split_pattern, where), SplitBehavior::Isolated, false});
  }
}

void PreTokenizer::run(std::string_view text, Scratch& scratch,
                       const std::function<void(std::string_view)>& word) const {
  if (scratch.patterns.empty()) scratch.patterns.resize(steps_.size() + last_.size());
  if (steps_.empty()) {
    finish(text, scratch, word);
  } else {
    run_step(0, text, scratch, word);
  }
}

void PreTokenizer::run_step(std::size_t index, std::string_view text, Scratch& scratch,
                            const std::function<void(std::string_view)>& word) const {
  if (index == steps_.size() + last_.size()) {
    word(text);
    return;
  }
  const Step& step = index < steps_.size() ? steps_[index] : last_[0];
  const auto emit = [&](std::string_view piece) {
    if (index + 1 == steps_.size()) {
      finish(piece, scratch, word);
    } else {
      run_step(index + 1, piece, scratch, word);
    }
  };
  const bool keeps_all =
      step.behavior == SplitBehavior::Isolated || (step.behavior == SplitBehavior::Removed && step.invert);
  if (step.fast != nullptr && keeps_all) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = step.fast(text, at);
      emit(text.substr(at, end - at));
      at = end;
    }
    return;
  }

  std::vector<Segment> segments;
  SplitPattern::Scratch& pattern_scratch = scratch.patterns[index];
  step.pattern.start(text, pattern_scratch);
  std::size_t at = 0;
  for (SplitPattern::Match match; at < text.size() && step.pattern.next(at, pattern_scratch, match); at = match.end) {
    if (match.begin > at) segments.push_back({at, match.begin, step.invert});
    segments.push_back({match.begin, match.end, !step.invert});
  }
  if (at < text.size()) segments.push_back({at, text.size(), step.invert});
  merge_adjacent(segments, step.behavior);
  for (const Segment& segment : segments) {
    if (step.behavior == SplitBehavior::Removed && segment.delimiter) continue;
    emit(text.substr(segment.begin, segment.end - segment.begin));
  }
}

void PreTokenizer::finish(std::string_view piece, Scratch& scratch,
                          const std::function<void(std::string_view)>& word) const {
  if (add_prefix_space_ && !piece.starts_with(' ')) {
    scratch.prefixed = ' ';
    scratch.prefixed += piece;
    piece = scratch.prefixed;
  }
  run_step(steps_.size(), piece, scratch, word);
}

}  // namespace so
