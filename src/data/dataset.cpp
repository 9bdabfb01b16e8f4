#include "data/dataset.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/progress.h"
#include "data/chat/chat_renderer.h"
#include "data/data_file.h"
#include "data/notes_log.h"
#include "data/python_programs.h"
#include "data/records.h"
#include "io/cache_directory.h"

namespace so {
namespace {

// Checkpoints record the key: it changes with what examples hold, never with how a cache is laid out.
constexpr std::uint32_t kDataKeyVersion = 1;

// `chat`: where the file has conversations; `table`: where Python reads it.
std::uint64_t key_of(std::uint64_t content, const TextEncoder& encoder, const ExampleOptions& options,
                     const ChatRenderer* chat, bool table) {
  std::string facts = fmt::format("{} {} {} {} {} {} {} {}", kDataKeyVersion, kTemplateVersion, content,
                                  options.max_length, options.train_on_prompt, encoder.vocabulary_size(),
                                  encoder.end_token().value_or(-1), encoder.fingerprint());
  if (chat != nullptr) facts += fmt::format(" {:016x} {}", chat->chat_template().fingerprint(), options.mask_history);
  if (table) facts += fmt::format(" {:016x}", fingerprint(table_program()));
  return hash_text(facts);
}

// Tokenises the records of one file, block after block.
class Tokenisation {
 public:
  // `chat`: for conversations; null where there are none.
  Tokenisation(const DataFile& file, const ExampleBuilder& builder, std::int32_t vocabulary_size,
               const ChatRenderer* chat, TrainedTurns trained, ThreadPool& pool)
      : name_(file.name()),
        file_(file.records()),
        builder_(builder),
        vocabulary_size_(vocabulary_size),
        chat_(chat),
        trained_(trained),
        pool_(pool) {}

  // take(example) for each document, in the order of the records.
  template <class Take>
  void run(const Take& take) {
    ProgressReport progress(fmt::format("tokenising {}", name_));
    std::size_t records = 0;
    while (read_block()) {
      examples_.assign(block_.size(), {});
      errors_.assign(block_.size(), nullptr);
      first_error_ = std::numeric_limits<std::int64_t>::max();
      pool_.parallel_for(static_cast<std::int64_t>(block_.size()), 16,
                         [this](std::int64_t begin, std::int64_t end) { build(begin, end); });
      build_long();
      for (std::size_t i = 0; i < block_.size(); ++i) {
        if (errors_[i]) std::rethrow_exception(errors_[i]);  // the first in file order, not in time
        for (const Example& example : examples_[i]) take(example);
      }
      notes_.add(block_notes_);
      notes_.keep_most_counted();
      block_notes_ = {};
      records += block_.size();
      progress.update(file_->done(), fmt::format("{} records", records));
    }
    for (const std::string& column : file_->unread_columns()) {
      notes_.note(NoteKind::unread_column, column);
      notes_.end_record();
    }
    notes_.keep_most_counted();
  }

  // Of all records, after run().
  const RecordNotes& notes() const { return notes_; }

 private:
  bool read_block() {
    if (!file_->next(block_)) return false;
    if (!format_) {
      const RawRecord& first = block_.front();
      format_ = format_of(RecordParser(name_, vocabulary_size_).parse(first));
      first_place_ = first.row < 0 ? fmt::format("on line {}", first.line) : fmt::format("in row {}", first.row);
    }
    return true;
  }

  // What lies behind a record that ends the run is not needed; each of its conversations may take all of its time.
  void build(std::int64_t begin, std::int64_t end) {
    if (begin > first_error_) return;
    build_records(begin, end);
    for (std::int64_t i = begin; i < end; ++i) {
      if (!errors_[static_cast<std::size_t>(i)]) continue;
      for (std::int64_t first = first_error_; i < first && !first_error_.compare_exchange_weak(first, i);) continue;
      return;
    }
  }

  void build_records(std::int64_t begin, std::int64_t end) {
    RecordParser parser(name_, vocabulary_size_);
    std::vector<std::size_t> conversations;
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      if (!is_long(block_[i])) build_record(i, parser, nullptr, conversations);
    if (!conversations.empty()) build_chats(conversations);
    add_notes(parser.notes());
  }

  // Threads share out records, and of those that are so long the text: one of them may be all of the file.
  static bool is_long(const RawRecord& raw) { return raw.json.size() >= (std::size_t{1} << 20); }

  void build_long() {
    RecordParser parser(name_, vocabulary_size_);
    std::vector<std::size_t> conversations;
    for (std::size_t i = 0; i < block_.size(); ++i)
      if (is_long(block_[i])) build_record(i, parser, &pool_, conversations);
    if (!conversations.empty()) build_chats(conversations);
    add_notes(parser.notes());
  }

  void add_notes(const RecordNotes& notes) {
    const std::lock_guard lock(notes_mutex_);
    block_notes_.add(notes);
  }

  // A conversation is added to those that are built together.
  void build_record(std::size_t i, RecordParser& parser, ThreadPool* pool, std::vector<std::size_t>& conversations) {
    try {
      const Record record = checked(parser, block_[i]);
      if (std::holds_alternative<ChatRecord>(record))
        conversations.push_back(i);
      else
        keep(i, [&] { return builder_.build_all(record, pool); });
    } catch (...) {
      errors_[i] = std::current_exception();
    }
  }

  // One request for all of them: a process is asked.
  void build_chats(const std::vector<std::size_t>& places) {
    SO_CHECK(chat_ != nullptr, "a conversation in a file without");
    std::vector<std::string_view> records;
    for (const std::size_t i : places) records.push_back(block_[i].json);
    const std::vector<RenderedChat> rendered = chat_->render(records, trained_);
    RecordNotes notes;
    for (std::size_t k = 0; k < places.size(); ++k) {
      keep(places[k], [&] { return std::vector{builder_.build_chat(rendered[k])}; });
      note_rendered(rendered[k], notes);
    }
    add_notes(notes);
  }

  template <class Build>
  void keep(std::size_t i, const Build& build) {
    try {
      examples_[i] = build();
      note_examples(examples_[i]);
    } catch (const Error& error) {
      errors_[i] = std::make_exception_ptr(Error(fmt::format("{}: {}", location_of(name_, block_[i]), error.what())));
    } catch (...) {
      errors_[i] = std::current_exception();
    }
  }

  void note_examples(const std::vector<Example>& examples) {
    RecordNotes notes;
    note_example(examples.front(), notes);
    if (!notes.empty()) add_notes(notes);
  }

  Record checked(RecordParser& parser, const RawRecord& raw) const {
    Record record = parser.parse(raw);
    if (const RecordFormat format = format_of(record); format != *format_)
      fail("{}: this is {} record, the file began with {} record {}; a file holds one kind only",
           location_of(name_, raw), with_article(format), with_article(*format_), first_place_);
    return record;
  }

  static std::string with_article(RecordFormat format) {
    return fmt::format("{} {}", format == RecordFormat::alpaca ? "an" : "a", name_of(format));
  }

  std::string name_;
  std::unique_ptr<RecordBlocks> file_;
  const ExampleBuilder& builder_;
  std::int32_t vocabulary_size_;
  const ChatRenderer* chat_;
  TrainedTurns trained_;
  ThreadPool& pool_;
  std::optional<RecordFormat> format_;
  std::string first_place_;
  std::vector<RawRecord> block_;
  std::vector<std::vector<Example>> examples_;  // the documents of each record
  std::vector<std::exception_ptr> errors_;
  std::atomic<std::int64_t> first_error_{std::numeric_limits<std::int64_t>::max()};  // of the block, by place
  std::mutex notes_mutex_;
  RecordNotes block_notes_, notes_;
};

std::optional<TokenDataset> open_if_valid(const std::filesystem::path& path, std::uint64_t key,
                                          const TextEncoder& encoder, ThreadPool& pool, LogLevel complaint) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  try {
    TokenDataset dataset(path, key, encoder.vocabulary_size(), &pool);
    // When it was last used, for who prunes caches.
    ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
    return dataset;
  } catch (const Error& error) {
    log_message(complaint, fmt::format("{}; making it again", error.what()));
    return std::nullopt;
  }
}

void report(const DatasetOptions& options, const TokenDataset& dataset, const std::filesystem::path& cache, bool made) {
  const DatasetCounts& c = dataset.counts();
  std::string notes;
  if (c.truncated > 0) notes += fmt::format("; {} cut to {}", c.truncated, options.example.max_length);
  if (c.dropped > 0) notes += fmt::format("; {} dropped (no token to train on)", c.dropped);
  if (c.special_tokens > 0) notes += fmt::format("; {} special tokens in the text", c.special_tokens);
  log_info("{}: {}: {} record{}, {} tokens, {} of them trained on, longest {}{}", options.name, options.file.string(),
           c.records, c.records == 1 ? "" : "s", c.tokens, c.trained_tokens, c.longest, notes);
  log_detail("{}: {} documents; token cache {} ({})", options.name, c.documents, cache.string(),
             made ? "new" : "of an earlier run");
}

// Conversations of which none trains a token that ends generation make a model that does not stop. Documents as long as
// may be are passed over, since their ends were cut.
void warn_unless_stop_is_trained(const DatasetOptions& options, const TokenDataset& dataset, const TextEncoder& encoder,
                                 const ChatTemplate& chat) {
  constexpr std::int64_t looked_at = 1000;
  std::int64_t whole = 0;
  for (std::int64_t i = 0; i < std::min(looked_at, dataset.size()); ++i) {
    if (dataset.length(i) >= options.example.max_length) continue;
    const DocumentView document = dataset.document(i);
    ++whole;
    if (std::any_of(document.targets.begin(), document.targets.end(),
                    [&](std::int32_t id) { return id != kIgnored && encoder.ends_generation(id); }))
      return;
  }
  if (whole == 0) return;
  log_warning(
      "{}: {}: generation stops at {}, and none of the first {} conversations trains such a token, so the model may not "
      "learn to stop; put the token that ends a turn in {} among \"eos_token_id\" of generation_config.json",
      options.name, options.file.string(),
      chat.stop_tokens.empty() ? "no token" : fmt::format("{}", fmt::join(chat.stop_tokens, " or ")), whole,
      chat.source);
}

// An upper limit of the tokens in a document made from a record of this format: the template's text is ASCII, and so
// are the braces, keys and quotes that the record has beyond its text.
std::uint64_t most_tokens(RecordFormat format, std::string_view json, const TextEncoder& encoder) {
  if (format == RecordFormat::token_ids) return json.size() / 2;  // an id has a digit and something behind it
  // A template may add as much as it likes.
  if (format == RecordFormat::chat) return std::numeric_limits<std::uint64_t>::max();
  constexpr std::uint64_t end_token = 1;
  if (format != RecordFormat::alpaca) return encoder.most_tokens(json) + end_token;
  static const std::string prompt = alpaca_prompt({"", "an input", ""});
  return encoder.most_tokens(json) + encoder.most_tokens(prompt) + end_token;
}

// Whether a record of token ids may hold several documents, each as long as may be: whether it has more than the keys
// of one that does not.
bool may_be_packed(std::string_view json) {
  return std::count(json.begin(), json.end(), ':') > 1 + (json.find("\"labels\"") != json.npos ? 1 : 0);
}

}  // namespace

struct DatasetSource::State {
  State(DatasetOptions o, const TextEncoder& e, ThreadPool& p)
      : options(std::move(o)), encoder(e), pool(p), builder(encoder, options.example), file(options.file) {}

  Tokenisation tokenisation() const {
    return {file, builder, encoder.vocabulary_size(), chat.get(), trained_turns(options.example), pool};
  }

  const DatasetOptions options;
  const TextEncoder& encoder;
  ThreadPool& pool;
  const ExampleBuilder builder;
  const DataFile file;
  RecordFormat format = RecordFormat::text;
  std::unique_ptr<ChatRenderer> chat;  // of a file of conversations
  std::uint64_t key = 0;
  std::filesystem::path cache;
  std::optional<TokenDataset> found;
  std::optional<std::uint64_t> most_bytes, bytes;
};

namespace {

// Options are for all files, and these say what is trained of a record that has parts.
void log_idle_options(const DatasetOptions& options, RecordFormat format) {
  const auto idle = [&](const char* option) {
    log_info("{}: {}: {} changes nothing in {} records", options.name, options.file.string(), option, name_of(format));
  };
  if (options.example.mask_history && format != RecordFormat::chat) idle("--mask_history");
  if (options.example.train_on_prompt && format == RecordFormat::text) idle("--train_on_prompt");
}

}  // namespace

DatasetSource::DatasetSource(DatasetOptions options, const TextEncoder& encoder, ThreadPool& pool)
    : state_(std::make_unique<State>(std::move(options), encoder, pool)) {
  State& s = *state_;
  // A file that is no data at all is refused by its first record, before all of it is read for its key.
  const auto records = s.file.records();
  if (std::vector<RawRecord> first; records->next(first))
    s.format = format_of(RecordParser(s.file.name(), encoder.vocabulary_size()).parse(first.front()));
  if (s.format == RecordFormat::chat) s.chat = std::make_unique<ChatRenderer>(encoder.chat_template());
  log_idle_options(s.options, s.format);
  const std::uint64_t content =
      hash_large(s.file.content().bytes(), pool, [&](auto part) { s.file.content().give_back(part); });
  s.key = key_of(content, encoder, s.options.example, s.chat.get(), s.file.is_table());
  // The stem is for people who look into the directory; cut, since file names end at 255 bytes.
  const std::string cache_name = fmt::format("{}-{:016x}.tokens", s.options.file.stem().string().substr(0, 100), s.key);

  const std::vector<std::filesystem::path> directories =
      cache_directories(s.options.cache_directory, s.options.fallback_directory);
  for (const auto& directory : directories) {
    s.cache = directory / cache_name;
    s.found = open_if_valid(s.cache, s.key, encoder, pool, LogLevel::debug);
    if (s.found) return;
  }
  s.cache = writable_cache_directory(directories) / cache_name;
}

DatasetSource::~DatasetSource() = default;
DatasetSource::DatasetSource(DatasetSource&&) noexcept = default;

const std::string& DatasetSource::name() const { return state_->file.name(); }
bool DatasetSource::makes_cache() const { return !state_->found; }
const std::filesystem::path& DatasetSource::cache() const { return state_->cache; }

std::uint64_t DatasetSource::most_cache_bytes() {
  State& s = *state_;
  if (s.most_bytes) return *s.most_bytes;
  const bool encodes = s.format != RecordFormat::token_ids;
  std::uint64_t tokens = 0, documents = 0;
  if (s.file.is_table()) {  // whose texts only reading it would show
    documents = s.file.table_rows();
    tokens = documents * static_cast<std::uint64_t>(s.options.example.max_length);
  } else if (!encodes || s.encoder.can_encode()) {
    try {
      const auto records = s.file.records();
      for (std::vector<RawRecord> block; records->next(block);)
        for (const RawRecord& record : block) {
          const std::uint64_t most = most_tokens(s.format, record.json, s.encoder);
          const bool packed = s.format == RecordFormat::token_ids && may_be_packed(record.json);
          tokens += packed ? most : std::min(most, static_cast<std::uint64_t>(s.options.example.max_length));
          documents += packed ? std::max<std::uint64_t>(most / 2, 1) : 1;  // one that is trained has two tokens
        }
    } catch (const Error&) {  // open() meets it too, perhaps after what is wrong with an earlier record
    }
  }
  s.most_bytes = token_cache_bytes(tokens, documents);
  return *s.most_bytes;
}

std::uint64_t DatasetSource::count_cache_bytes() {
  State& s = *state_;
  if (s.bytes) return *s.bytes;
  std::uint64_t tokens = 0, documents = 0;
  s.tokenisation().run([&](const Example& example) {
    if (example.trained == 0) return;
    tokens += example.ids.size();
    ++documents;
  });
  s.bytes = token_cache_bytes(tokens, documents);
  return *s.bytes;
}

TokenDataset DatasetSource::open() {
  State& s = *state_;
  const auto told = [&s](TokenDataset dataset, bool made) {
    report(s.options, dataset, s.cache, made);
    log_notes(fmt::format("{}: {}", s.options.name, s.options.file.string()), dataset.notes(),
              s.chat ? std::optional(s.chat->chat_template()) : std::nullopt);
    if (s.chat) warn_unless_stop_is_trained(s.options, dataset, s.encoder, s.chat->chat_template());
    return dataset;
  };
  if (s.found) return told(std::move(*s.found), false);
  const CacheLock lock(s.cache);
  // Another process may have made it before this one had the lock.
  if (auto dataset = open_if_valid(s.cache, s.key, s.encoder, s.pool, LogLevel::warning))
    return told(std::move(*dataset), false);
  if (lock.held()) remove_stale_siblings(s.cache);  // of processes that were killed
  std::error_code error;
  const std::filesystem::path data = std::filesystem::absolute(s.options.file, error);
  TokenCacheWriter writer(s.cache, s.key, error ? s.options.file : data);
  Tokenisation tokenisation = s.tokenisation();
  tokenisation.run([&](const Example& example) { writer.add(example); });
  const DatasetCounts& counts = writer.counts();
  if (counts.records == 0) fail("{}: the file holds no records", s.file.name());
  if (counts.documents == 0 && counts.truncated == 0)
    fail(
        "{}: none of the {} records has a token to train on; of a conversation those are the turns of the role "
        "assistant (superoffload tokenize --show {} shows which)",
        s.file.name(), counts.records, s.file.name());
  if (counts.documents == 0)
    fail("{}: none of the {} records has a trained token within max_length = {}; raise it", s.file.name(),
         counts.records, s.options.example.max_length);
  writer.finish(tokenisation.notes());
  return told(TokenDataset(s.cache, s.key, s.encoder.vocabulary_size(), &s.pool), true);
}

TokenDataset open_dataset(DatasetOptions options, const TextEncoder& encoder, ThreadPool& pool) {
  return DatasetSource(std::move(options), encoder, pool).open();
}

}  // namespace so
