#include "data/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "data/tokenizer/replace.h"

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

PreTokenizer::Split PreTokenizer::split_of(std::string_view pattern, const SplitStep& step, bool fast) {
  return {fast && step.is_regex ? fast_split_for(pattern, step.behavior == SplitBehavior::Isolated) : nullptr,
          step.is_regex ? SplitPattern::regex(pattern, step.where) : SplitPattern::literal(pattern, step.where),
          step.behavior, step.invert};
}

PreTokenizer::PreTokenizer(const std::vector<PreTokenizeStep>& steps, bool fast) {
  for (const PreTokenizeStep& step : steps) {
    if (const auto* split = std::get_if<SplitStep>(&step)) {
      steps_.emplace_back(split_of(split->pattern, *split, fast));
    } else if (const auto* metaspace = std::get_if<MetaspaceStep>(&step)) {
      steps_.emplace_back(*metaspace);
    } else {
      const auto& byte_level = std::get<ByteLevelStep>(step);
      if (byte_level.add_prefix_space) steps_.emplace_back(PrefixSpace{});
      if (byte_level.use_regex) steps_.emplace_back(split_of(gpt2_split_pattern, SplitStep{}, fast));
    }
  }
}

// One text on its way through the steps.
class PreTokenizer::Run {
 public:
  Run(const std::vector<Step>& steps, Scratch& scratch, const std::function<void(std::string_view)>& word)
      : steps_(steps), scratch_(scratch), word_(word) {}

  void from(std::size_t index, std::string_view text, bool at_beginning) {
    if (index == steps_.size()) {
      word_(text);
      return;
    }
    const Step& step = steps_[index];
    if (const auto* splitter = std::get_if<Split>(&step))
      split(index, *splitter, text, at_beginning);
    else if (const auto* metaspace = std::get_if<MetaspaceStep>(&step))
      replace_spaces(index, *metaspace, text, at_beginning);
    else if (text.starts_with(' '))
      from(index + 1, text, at_beginning);
    else
      from(index + 1, scratch_.texts[index].assign(" ").append(text), at_beginning);
  }

 private:
  void split(std::size_t index, const Split& step, std::string_view text, bool at_beginning) {
    const auto emit = [&](std::size_t begin, std::size_t end) {
      from(index + 1, text.substr(begin, end - begin), at_beginning && begin == 0);
    };
    const bool keeps_all =
        step.behavior == SplitBehavior::Isolated || (step.behavior == SplitBehavior::Removed && step.invert);
    if (step.fast != nullptr && keeps_all) {
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = step.fast(text, at);
        emit(at, end);
        at = end;
      }
      return;
    }
    SplitPattern::Scratch& pattern_scratch = scratch_.patterns[index];
    step.pattern.start(text, pattern_scratch);
    std::vector<Segment> segments;
    std::size_t at = 0;
    for (SplitPattern::Match match; at < text.size() && step.pattern.next(at, pattern_scratch, match); at = match.end) {
      if (match.begin > at) segments.push_back({at, match.begin, step.invert});
      segments.push_back({match.begin, match.end, !step.invert});
    }
    if (at < text.size()) segments.push_back({at, text.size(), step.invert});
    merge_adjacent(segments, step.behavior);
    for (const Segment& segment : segments) {
      if (step.behavior == SplitBehavior::Removed && segment.delimiter) continue;
      emit(segment.begin, segment.end);
    }
  }

  void replace_spaces(std::size_t index, const MetaspaceStep& step, std::string_view text, bool at_beginning) {
    std::string& storage = scratch_.texts[index];
    text = replace_all(text, " ", step.replacement, storage);
    const bool prepends = step.prepend == MetaspaceStep::Prepend::always ||
                          (step.prepend == MetaspaceStep::Prepend::first && at_beginning);
    if (prepends && !text.starts_with(step.replacement)) {
      if (text.data() != storage.data()) storage = text;
      text = storage.insert(0, step.replacement);
    }
    std::size_t begin = 0;
    while (step.split) {
      const std::size_t end = text.find(step.replacement, begin + 1);
      if (end == std::string_view::npos) break;
      from(index + 1, text.substr(begin, end - begin), at_beginning && begin == 0);
      begin = end;
    }
    from(index + 1, text.substr(begin), at_beginning && begin == 0);
  }

  const std::vector<Step>& steps_;
  Scratch& scratch_;
  const std::function<void(std::string_view)>& word_;
};

void PreTokenizer::run(std::string_view text, bool at_beginning, Scratch& scratch,
                       const std::function<void(std::string_view)>& word) const {
  if (scratch.texts.empty()) {
    scratch.patterns.resize(steps_.size());
    scratch.texts.resize(steps_.size());
  }
  Run(steps_, scratch, word).from(0, text, at_beginning);
}

}  // namespace so
