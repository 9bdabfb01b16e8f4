#include "model/text_generator.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "data/records.h"

namespace so {

TextGenerator::TextGenerator(Device& device, ModelOnDevice& model, WeightSource& weights, Stream& stream,
                             std::int64_t capacity, std::int64_t batch_tokens)
    : capacity_(capacity),
      batch_tokens_(batch_tokens),
      vocabulary_(model.decoder().spec().vocab),
      model_(model),
      weights_(weights),
      stream_(stream),
      logits_memory_(
          device.allocate(MemoryKind::device, static_cast<std::size_t>(vocabulary_) * sizeof(float), "logits")),
      logits_host_(device.allocate(MemoryKind::pinned, logits_memory_.bytes(), "logits")) {}

void TextGenerator::feed(std::span<const std::int32_t> ids) {
  const auto tokens = static_cast<std::int64_t>(read_.size() + ids.size());
  const std::int64_t row = model_.rope_rows().first(tokens);
  if (row == std::exchange(rope_row_, row)) return read(ids, tokens);
  std::vector<std::int32_t> text = std::exchange(read_, {});
  text.insert(text.end(), ids.begin(), ids.end());
  model_.cache().used = 0;
  read(text, tokens);
}

void TextGenerator::read(std::span<const std::int32_t> ids, std::int64_t text_tokens) {
  const Tensor logits(logits_memory_.data(), DType::f32, {1, vocabulary_});
  for (std::size_t at = 0; at < ids.size(); at += static_cast<std::size_t>(batch_tokens_)) {
    const auto piece = ids.subspan(at, std::min(static_cast<std::size_t>(batch_tokens_), ids.size() - at));
    const auto n = static_cast<std::int64_t>(piece.size());
    const std::int64_t used = model_.cache().used;
    MicroBatch batch;
    batch.ids.assign(piece.begin(), piece.end());
    batch.targets.assign(piece.size(), kIgnored);
    batch.positions.resize(piece.size());
    std::iota(batch.positions.begin(), batch.positions.end(), static_cast<std::int32_t>(used));
    batch.cu_seqlens = {0, static_cast<std::int32_t>(n)};
    batch.tokens = n;
    const std::array<std::int32_t, 2> keys{0, static_cast<std::int32_t>(used + n)};
    DeviceBatch views = model_.upload().upload(stream_, batch, keys, text_tokens);
    model_.decoder().forward_logits(stream_, views, weights_, model_.arena(), logits, &model_.cache());
    read_.insert(read_.end(), piece.begin(), piece.end());
  }
}

std::int32_t TextGenerator::sample_next(const SamplingOptions& sampling, std::mt19937_64& random) {
  stream_.copy(logits_host_.data(), logits_memory_.data(), logits_memory_.bytes());
  stream_.synchronize();
  return sample({static_cast<const float*>(logits_host_.data()), static_cast<std::size_t>(vocabulary_)}, sampling,
                random);
}

Answer TextGenerator::answer(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
                             const AnswerSettings& settings, std::mt19937_64& random,
                             const std::function<void(const std::string&)>& emit, const std::function<bool()>& stop) {
  SO_CHECK(!prompt.empty() && static_cast<std::int64_t>(prompt.size()) + settings.max_new_tokens <= capacity_,
           "{} tokens and {} more", prompt.size(), settings.max_new_tokens);
  // The last token is always read, since its logits are wanted.
  const auto [mine, theirs] = std::mismatch(read_.begin(), read_.end(), prompt.begin(), prompt.end());
  auto known = std::min(static_cast<std::size_t>(mine - read_.begin()), prompt.size() - 1);
  const DecoderSpec& spec = model_.decoder().spec();
  if (known < read_.size() && (spec.has_delta() || spec.has_state_space())) known = 0;  // a state cannot go back
  read_.resize(known);
  model_.cache().used = static_cast<std::int64_t>(known);

  Answer answer;
  answer.reason = "length";
  StreamDecoder text(tokenizer, true, prompt);
  const auto say = [&](const std::string& piece) {
    answer.text += piece;
    emit(piece);
  };
  std::span<const std::int32_t> next = prompt.subspan(known);
  for (int i = 0; i < settings.max_new_tokens; ++i) {
    if (stop()) {
      answer.reason = "interrupted";
      break;
    }
    feed(next);
    const std::int32_t id = sample_next(settings.sampling, random);
    if (settings.stop_at_end && tokenizer.ends_generation(id)) {
      answer.reason = "eos";
      break;
    }
    answer.ids.push_back(id);
    say(text.push(id));
    next = std::span(answer.ids).last(1);
  }
  say(text.finish());
  return answer;
}

}  // namespace so
