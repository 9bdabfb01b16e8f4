#include "data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <variant>

#include "base/error.h"
#include "data/tokenizer/byte_level.h"
#include "data/tokenizer/json_reader.h"
#include "data/tokenizer/json_stages.h"
#include "data/tokenizer/pipeline_json.h"

namespace so {
namespace {

// ---- model ----

// The tokens that stand for bytes: the byte's spelling, or "<0x0A>" with byte fallback.
void read_byte_ids(const JsonNode& vocabulary, TokenizerSpec& spec) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    std::int32_t& id = spec.byte_ids[static_cast<std::size_t>(byte)];
    const std::string token = spec.byte_level ? spell_bytes(std::string_view(&c, 1)) : fmt::format("<0x{:02X}>", byte);
    id = spec.model.find(token);
    const bool occurs_in_utf8 = byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
    if (id >= 0 || !occurs_in_utf8) continue;
    if (spec.byte_level)
      fail("{}: no token for the byte 0x{:02X} (\"{}\"): this is not a complete byte-level vocabulary",
           vocabulary.where(), byte, token);
    if (!spec.unk)
      fail(
          "{}: no token for the byte 0x{:02X} (\"{}\"): this is not a complete vocabulary of SentencePiece with byte "
          "fallback, and there is no \"unk_token\"",
          vocabulary.where(), byte, token);
  }
}

void read_vocabulary(const JsonNode& node, TokenizerSpec& spec) {
  for (const auto field : node.object()) {
    std::int64_t id = -1;
    if (field.value.get(id) || id < 0 || id >= Vocabulary::max_vocabulary) {
      fail("{}[\"{}\"]: the id must be an integer in [0, {})", node.where(), field.key, Vocabulary::max_vocabulary);
    }
    const auto added = spec.model.add(static_cast<std::int32_t>(id), field.key);
    if (added == Vocabulary::Added::string_taken) fail("{}: the token \"{}\" occurs twice", node.where(), field.key);
    if (added == Vocabulary::Added::id_taken) {
      fail("{}: the tokens \"{}\" and \"{}\" have the same id {}", node.where(),
           spec.model.string(static_cast<std::int32_t>(id)), field.key, id);
    }
    if (!spec.byte_level) continue;
    if (const auto bytes = bytes_of_spelling(field.key); bytes && !bytes->empty())
      spec.words.add(static_cast<std::int32_t>(id), *bytes);
  }
  if (spec.model.count() == 0) fail("{} is empty", node.where());
}

// A byte-level model never meets an unknown character. Of others one that would drop it is refused.
void read_unknown(const JsonNode& model, TokenizerSpec& spec) {
  if (!spec.byte_level) {
    spec.byte_fallback = model.flag("byte_fallback", false);
    spec.fuse_unk = model.flag("fuse_unk", false);
    if (const auto unk = model.find("unk_token"); is_set(unk)) {
      const std::int32_t id = spec.model.find(unk->string());
      if (id >= 0) spec.unk = id;
      if (id < 0 && !spec.byte_fallback)
        fail("{}: the token \"{}\" is not in model.vocab", unk->where(), unk->string());
    }
    if (!spec.unk && !spec.byte_fallback)
      fail(
          "{}: characters without a token would be lost, since there is no ByteLevel pre-tokenizer, no "
          "\"byte_fallback\" and no \"unk_token\"; such models are not supported",
          model.where());
  }
  if (spec.byte_level || spec.byte_fallback) read_byte_ids(model.at("vocab"), spec);
}

struct PairOfStrings {
  std::string_view left;
  std::string_view right;
};

// Nothing for a line that the library takes for a file header.
std::optional<PairOfStrings> merge_of(const JsonNode& node, JsonElement element, std::size_t index) {
  std::string_view line;
  if (!element.get(line)) {
    if (line.starts_with("#version")) return std::nullopt;
    const std::size_t blank = line.find(' ');
    if (blank == std::string_view::npos || line.find(' ', blank + 1) != std::string_view::npos) {
      fail("{}[{}]: \"{}\" is not two tokens with a blank between them", node.where(), index, line);
    }
    return PairOfStrings{line.substr(0, blank), line.substr(blank + 1)};
  }
  JsonArray pair;
  PairOfStrings merge;
  if (element.get(pair) || pair.size() != 2 || pair.at(0).get(merge.left) || pair.at(1).get(merge.right)) {
    fail("{}[{}] must be a string \"a b\" or a pair [\"a\", \"b\"]", node.where(), index);
  }
  return merge;
}

void read_merges(const JsonNode& node, TokenizerSpec& spec) {
  std::size_t index = 0;
  std::string joined;
  std::unordered_set<std::uint64_t> seen;
  for (const JsonElement element : node.array()) {
    const auto merge = merge_of(node, element, index);
    if (merge) {
      joined.assign(merge->left).append(merge->right);
      const auto known = [&](std::string_view token) {
        const std::int32_t id = spec.model.find(token);
        if (id < 0) fail("{}[{}]: the token \"{}\" is not in model.vocab", node.where(), index, token);
        return id;
      };
      const Merge ids{known(merge->left), known(merge->right), known(joined)};
      if (!seen.insert(static_cast<std::uint64_t>(ids.left) << 32 | static_cast<std::uint32_t>(ids.right)).second) {
        fail("{}[{}]: the pair \"{}\" \"{}\" occurs twice", node.where(), index, merge->left, merge->right);
      }
      spec.merges.push_back(ids);
    }
    ++index;
  }
}

void read_model(const JsonNode& model, TokenizerSpec& spec) {
  model.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                    "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const auto dropout = model.find("dropout"); is_set(dropout) && dropout->number() != 0) {
    fail("{} is {}: random ids are not supported; set it to null", dropout->where(), dropout->number());
  }
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto affix = model.find(key);
    if (is_set(affix) && !affix->string().empty())
      fail("{} is \"{}\": only BPE without it is supported", affix->where(), affix->string());
  }
  spec.ignore_merges = model.flag("ignore_merges", false);
  read_vocabulary(model.at("vocab"), spec);
  read_unknown(model, spec);
  read_merges(model.at("merges"), spec);
}

// ---- added tokens ----

AddedToken read_added_token(const JsonNode& node) {
  node.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  token.id = node.at("id").id(Vocabulary::max_vocabulary);
  token.content = node.at("content").string();
  token.single_word = node.flag("single_word");
  token.lstrip = node.flag("lstrip");
  token.rstrip = node.flag("rstrip");
  token.normalized = node.flag("normalized");
  token.special = node.flag("special");
  if (token.content.empty()) fail("{}.content is empty", node.where());
  // At each place of a text it may be compared to its end.
  constexpr std::size_t longest = 1000;
  if (token.content.size() > longest)
    fail("{}.content has {} bytes, {} at most are read", node.where(), token.content.size(), longest);
  return token;
}

// The ids by the rule of the `tokenizers` library, and so of transformers: in the file's order, a token of the model's
// vocabulary has the id there, any other the next free one. Tokens out of the order of their ids are numbered otherwise
// than the file says, with a warning; ids that this rule gives to no token make the file inconsistent.
void read_added_tokens(const JsonNode& list, TokenizerSpec& spec) {
  std::size_t index = 0;
  for (const JsonElement element : list.array())
    spec.added_tokens.push_back(read_added_token(list.element(element, index++)));

  std::unordered_set<std::string> contents;
  std::unordered_set<std::int32_t> written;
  for (const AddedToken& token : spec.added_tokens) {
    if (!contents.insert(token.content).second) fail("{}: the token \"{}\" occurs twice", list.where(), token.content);
    const std::int32_t in_model = spec.model.find(token.content);
    if (in_model >= 0 && token.id != in_model)
      fail("{}: \"{}\" has id {}, but {} in model.vocab", list.where(), token.content, token.id, in_model);
    if (!written.insert(token.id).second || (in_model < 0 && spec.model.contains(token.id)))
      fail("{}: \"{}\" has id {}, but another token has it, too", list.where(), token.content, token.id);
  }

  const AddedToken* renumbered = nullptr;
  std::int32_t in_file = 0;
  std::int32_t highest = -1;
  for (AddedToken& token : spec.added_tokens) {
    std::int32_t id = spec.model.find(token.content);
    if (id < 0) id = highest >= spec.model.count() ? highest + 1 : spec.model.count();
    if (!written.contains(id) || (token.id != id && spec.model.contains(id)))
      fail("{}: \"{}\" has id {}, but the next free id is {}", list.where(), token.content, token.id, id);
    highest = std::max(highest, id);
    if (id != token.id && renumbered == nullptr) {
      renumbered = &token;
      in_file = token.id;
    }
    token.id = id;
  }
  if (renumbered != nullptr)
    spec.warnings.push_back(
        fmt::format("{}: the tokens are not in the order of their ids; as in transformers their order counts, and "
                    "\"{}\" has id {}, not {}",
                    list.where(), renumbered->content, renumbered->id, in_file));
}

// ---- post-processor ----

constexpr std::size_t max_template_ids = 1000;

void read_template(const JsonNode& node, TokenizerSpec& spec) {
  node.allow_only({"type", "single", "pair", "special_tokens"});
  const JsonNode single = node.at("single");
  const JsonNode special_tokens = node.at("special_tokens");
  bool sequence_seen = false;
  std::size_t index = 0;
  for (const JsonElement element : single.array()) {
    const JsonNode piece = single.element(element, index++);
    piece.allow_only({"SpecialToken", "Sequence"});
    if (const auto sequence = piece.find("Sequence")) {
      if (sequence_seen || sequence->at("id").string() != "A")
        fail("{} must hold the sequence A exactly once", single.where());
      sequence_seen = true;
      continue;
    }
    const std::string_view token = piece.at("SpecialToken").at("id").string();
    const JsonNode ids = special_tokens.at(token).at("ids");
    std::size_t id_index = 0;
    for (const JsonElement id : ids.array()) {
      if (spec.before.size() + spec.after.size() == max_template_ids)
        fail("{} adds more than {} tokens to a text; no more are read", single.where(), max_template_ids);
      (sequence_seen ? spec.after : spec.before).push_back(ids.element(id, id_index++).id(Vocabulary::max_vocabulary));
    }
  }
  if (!sequence_seen) fail("{} must hold the sequence A exactly once", single.where());
}

void read_post_processor(const JsonNode& node, TokenizerSpec& spec) {
  bool has_template = false;
  for_each_stage(node, "processors", [&](const JsonNode& stage) {
    if (type_of(stage) == "ByteLevel") return;  // changes offsets, not ids
    if (type_of(stage) != "TemplateProcessing") refuse_type(stage, "TemplateProcessing or ByteLevel");
    if (has_template) fail("{}: more than one TemplateProcessing is not supported", stage.where());
    has_template = true;
    read_template(stage, spec);
  });
  std::unordered_set<std::int32_t> added;
  for (const AddedToken& token : spec.added_tokens) added.insert(token.id);
  for (const auto* ids : {&spec.before, &spec.after}) {
    for (const std::int32_t id : *ids) {
      const bool known = spec.model.contains(id) || added.contains(id);
      if (!known) fail("{} adds the id {}, which no token has", node.where(), id);
    }
  }
}

// To the library the first piece is whatever begins at the first character as given. Behind a step that cuts,
// characters that were put in front or that one character became make several such pieces; no published model has that.
void check_first_piece(const JsonNode& root, const TokenizerSpec& spec) {
  const auto& steps = spec.pre_tokenizers;
  const auto is_metaspace = [](const PreTokenizeStep& step) { return std::holds_alternative<MetaspaceStep>(step); };
  for (auto step = steps.begin(); step != steps.end(); ++step) {
    const auto* metaspace = std::get_if<MetaspaceStep>(&*step);
    if (metaspace == nullptr || metaspace->prepend != MetaspaceStep::Prepend::first || step == steps.begin()) continue;
    if (!spec.normalizers.empty() || std::any_of(steps.begin(), step, is_metaspace))
      fail("{}: prepend_scheme \"first\" behind another step is not supported beside a normalizer or another Metaspace",
           root.at("pre_tokenizer").where());
  }
}

}  // namespace

TokenizerSpec read_tokenizer_json(std::string_view json, const std::string& name) {
  simdjson::dom::parser parser;
  const JsonNode root = parse_json(parser, json, name);
  if (!root.is_object()) fail("{} must hold a JSON object", name);
  root.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                   "decoder", "model"});
  if (const auto version = root.find("version"); version && version->string() != "1.0") {
    fail("{} is \"{}\": only \"1.0\" is supported", version->where(), version->string());
  }
  TokenizerSpec spec;
  for (const std::string_view key : {"truncation", "padding"}) {
    if (is_set(root.find(key))) spec.warnings.push_back(name + ": \"" + std::string(key) + "\" is ignored");
  }
  const JsonNode model = root.at("model");
  if (const auto type = model.find("type"); type && type->string() != "BPE") refuse_type(model, "BPE");
  // The library reads a file without these keys, too.
  if (const auto node = root.find("normalizer"); is_set(node)) spec.normalizers = read_normalizers(*node);
  if (const auto node = root.find("pre_tokenizer"); is_set(node)) spec.pre_tokenizers = read_pre_tokenizers(*node);
  check_first_piece(root, spec);
  for (const PreTokenizeStep& step : spec.pre_tokenizers)
    spec.byte_level = spec.byte_level || std::holds_alternative<ByteLevelStep>(step);
  read_model(model, spec);
  if (const auto node = root.find("added_tokens")) read_added_tokens(*node, spec);
  if (const auto node = root.find("post_processor"); is_set(node)) read_post_processor(*node, spec);
  const auto decoder = root.find("decoder");
  if (spec.byte_level) {
    if (is_set(decoder)) check_byte_level_decoder(*decoder);
  } else {
    spec.decoders = is_set(decoder) ? read_decoders(*decoder) : std::vector{DecodeStep{DecodeStep::Kind::blanks}};
  }
  return spec;
}

}  // namespace so
