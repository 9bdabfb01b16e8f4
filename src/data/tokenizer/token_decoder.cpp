#include "data/tokenizer/token_decoder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "data/tokenizer/replace.h"
#include "data/tokenizer/utf8.h"

namespace so {
namespace {

// The byte of a token "<0xNN>", read as leniently as Rust's from_str_radix does.
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  const int high = token[3] == '+' ? 0 : digit(token[3]);
  const int low = digit(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<char>(high << 4 | low);
}

}  // namespace

TokenDecoder::TokenDecoder(std::vector<DecodeStep> steps) : steps_(std::move(steps)) {
  const auto fuse = std::find_if(steps_.begin(), steps_.end(),
                                 [](const DecodeStep& step) { return step.kind == DecodeStep::Kind::fuse; });
  fused_from_ = static_cast<std::size_t>(fuse - steps_.begin());
  for (std::size_t i = fused_from_ + 1; i < steps_.size(); ++i)
    SO_CHECK(steps_[i].kind == DecodeStep::Kind::strip, "step {} behind a fuse step", i);
}

void TokenDecoder::push(std::string_view token, State& state, std::string& text) const {
  state.steps_.resize(steps_.size());
  run(0, token, state, text);
}

void TokenDecoder::settle(State& state, std::string& text) const {
  state.steps_.resize(steps_.size());
  for (std::size_t step = 0; step < steps_.size(); ++step) end_bytes(step, state, text);
}

void TokenDecoder::end_bytes(std::size_t step, State& state, std::string& text) const {
  const std::string bytes = std::exchange(state.steps_[step].bytes, {});
  if (bytes.empty()) return;
  if (is_valid_utf8(bytes)) {
    run(step + 1, bytes, state, text);
  } else {
    for (std::size_t i = 0; i < bytes.size(); ++i) run(step + 1, "\xEF\xBF\xBD", state, text);
  }
}

void TokenDecoder::run(std::size_t index, std::string_view token, State& all, std::string& text) const {
  if (index == steps_.size()) {
    text += token;
    return;
  }
  const DecodeStep& step = steps_[index];
  State::OfStep& state = all.steps_[index];
  const auto next = [&](std::string_view changed) { run(index + 1, changed, all, text); };
  std::string storage;
  switch (step.kind) {
    case DecodeStep::Kind::replace:
      next(replace_all(token, step.pattern, step.content, storage));
      break;
    case DecodeStep::Kind::byte_fallback:
      if (const auto byte = byte_of(token)) {
        state.bytes.push_back(*byte);
        break;
      }
      end_bytes(index, all, text);
      next(token);
      break;
    case DecodeStep::Kind::fuse:
      next(token);
      break;
    case DecodeStep::Kind::strip:
      if (index < fused_from_) state = {};  // each token has a beginning of its own
      while (!state.past_beginning && state.stripped < step.count && token.starts_with(step.pattern)) {
        token.remove_prefix(step.pattern.size());
        ++state.stripped;
      }
      state.past_beginning = state.past_beginning || !token.empty() || state.stripped == step.count;
      next(token);
      break;
    case DecodeStep::Kind::metaspace:
      next(replace_all(token, step.pattern, step.drop_first && state.tokens == 0 ? "" : " ", storage));
      ++state.tokens;
      break;
    case DecodeStep::Kind::blanks:
      if (state.tokens++ != 0) next(" ");
      next(token);
      break;
  }
}

}  // namespace so
