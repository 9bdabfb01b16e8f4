#include "data/records.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "data_test_util.h"
#include "support/label.h"

namespace so {
namespace {

using test::error_of;

std::vector<Record> parse_all(std::string_view content, std::int32_t vocabulary = 100) {
  RecordReader reader("f", content);
  RecordParser parser("f", vocabulary);
  std::vector<Record> records;
  for (RawRecord raw; reader.next(raw);) records.push_back(parser.parse(raw));
  return records;
}

std::string error_in(std::string_view content) {
  return error_of([&] { parse_all(content); });
}

std::vector<std::string> texts_of(const std::vector<Record>& records) {
  std::vector<std::string> texts;
  for (const Record& record : records) texts.push_back(std::get<TextRecord>(record).text);
  return texts;
}

using Texts = std::vector<std::string>;

TEST(Records, ReadsAlpacaLines) {
  const auto records = parse_all(
      "{\"instruction\":\"Add.\",\"input\":\"1 2\",\"output\":\"3\"}\n"
      "{\"output\":\"b\",\"instruction\":\"a\",\"text\":\"ignored\",\"input\":null}\n"
      "{\"instruction\":\"a\",\"output\":\"\"}");
  ASSERT_EQ(records.size(), 3u);
  const auto& first = std::get<AlpacaRecord>(records[0]);
  EXPECT_EQ(first.instruction, "Add.");
  EXPECT_EQ(first.input, "1 2");
  EXPECT_EQ(first.output, "3");
  EXPECT_EQ(std::get<AlpacaRecord>(records[1]).input, "");
  EXPECT_EQ(std::get<AlpacaRecord>(records[2]).output, "");
  EXPECT_EQ(format_of(records[0]), RecordFormat::alpaca);
}

TEST(Records, DecodesEscapes) {
  EXPECT_EQ(texts_of(parse_all("{\"text\":\"\\\"\\\\\\n\\u00e9\\ud83d\\ude00\"}")), Texts{"\"\\\né😀"});
}

TEST(Records, ReadsArraysWhateverIsInTheStrings) {
  const auto texts = texts_of(parse_all(
      "[\n  {\"text\": \"a, b ] } [ {\"},\n  {\"text\": \"\\\" ] , \\\\\", \"meta\": {\"k\": [[1], {\"l\": []}]}},"
      "{\"text\":\"c\"}\n]\n"));
  EXPECT_EQ(texts, (Texts{"a, b ] } [ {", "\" ] , \\", "c"}));
  EXPECT_TRUE(parse_all("[]").empty());
  EXPECT_TRUE(parse_all(" [ \n ] ").empty());
}

// As Python's json and pandas write them, where no key means anything here.
TEST(Records, OtherKeysMayHoldAnyNumberThatPythonWrites) {
  const std::string extra =
      R"("score": NaN, "of": [Infinity, {"x": -Infinity}], "id": 1000000000000000019884624838656)";
  const auto lines =
      parse_all("{\"text\": \"a NaN, 99999999999999999999\", " + extra + "}\n{" + extra +
                ", \"instruction\": \"i\", \"output\": \"o\"}\n{" + extra + ", \"input_ids\": [1, 2]}\n");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(std::get<TextRecord>(lines[0]).text, "a NaN, 99999999999999999999");
  EXPECT_EQ(std::get<AlpacaRecord>(lines[1]).instruction, "i");
  EXPECT_EQ(std::get<TokenRecord>(lines[2]).ids, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(texts_of(parse_all("[{\"text\": \"b\", " + extra + "}]")), Texts{"b"});
}

TEST(Records, HalfOfASurrogatePairStopsARecordOnlyWhereItIsUsed) {
  EXPECT_EQ(
      texts_of(parse_all(R"({"text": "a\\ud83d \ud83d\ude00", "title": "cut \ud83d", "l": {"\udc00": ["\udfff"]}})")),
      Texts{"a\\ud83d \U0001f600"});
  EXPECT_EQ(error_in(R"({"text": "cut \ud83d"})"),
            "f:1: \"text\" holds half of a surrogate pair (\\ud800 to \\udfff); remove it");
  EXPECT_EQ(error_in(R"({"messages": [{"role": "user", "content": "a", "id": "\ud83d"}], "title": "\ud83d"})"), "");
  EXPECT_NE(error_in(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "\ude00"}]}]})")
                .find("\"content\" holds half of a surrogate pair"),
            std::string::npos);
}

TEST(Records, WhereAKeyMeansSomethingSuchANumberIsRefused) {
  EXPECT_NE(error_in("{\"text\": NaN}").find("f:1: \"text\" is a number; it must be a string"), std::string::npos);
  EXPECT_NE(error_in("{\"instruction\": \"a\", \"input\": NaN, \"output\": \"b\"}").find("\"input\" is a number"),
            std::string::npos);
  for (const char* id : {"NaN", "-Infinity", "1000000000000000019884624838656", "1e999"})
    EXPECT_NE(error_in(std::string("{\"input_ids\": [1, ") + id + "]}").find("\"input_ids\"[1] is not a whole number"),
              std::string::npos);
  EXPECT_NE(error_in("{\"text\": \"a\", \"b\": -NaN}").find("f:1: not valid JSON"), std::string::npos);
}

TEST(Records, ToleratesByteOrderMarkCarriageReturnsAndBlankLines) {
  EXPECT_EQ(texts_of(parse_all("\xef\xbb\xbf\r\n{\"text\":\"a\"}\r\n\r\n  \n{\"text\":\"b\"}\r\n\n")),
            (Texts{"a", "b"}));
  EXPECT_EQ(texts_of(parse_all("\xef\xbb\xbf[\r\n{\"text\":\"a\"}\r\n,\r\n{\"text\":\"b\"}]\r\n")), (Texts{"a", "b"}));
  EXPECT_TRUE(parse_all("").empty());
  EXPECT_TRUE(parse_all("\xef\xbb\xbf \n\r\n").empty());
}

TEST(Records, ReadsTokenIds) {
  const auto records = parse_all(
      "{\"input_ids\":[1,2,99],\"labels\":[-100,2,0],\"attention_mask\":[1,1,1],\"text\":\"x\"}\n{\"input_ids\":[7]}");
  const auto& first = std::get<TokenRecord>(records[0]);
  EXPECT_EQ(first.ids, (test::Ids{1, 2, 99}));
  EXPECT_EQ(first.labels, (test::Ids{-100, 2, 0}));
  EXPECT_EQ(std::get<TokenRecord>(records[1]).labels, test::Ids{7});
}

TEST(Records, TheLastOfEqualKeysCounts) {
  EXPECT_EQ(texts_of(parse_all("{\"text\":\"a\",\"text\":\"b\"}")), Texts{"b"});
}

TEST(Records, RefusesMalformedLinesByLine) {
  const std::string good = "{\"text\":\"a\"}\n\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"text\":\"a\"", "f:3: not valid JSON"},
      {"{\"text\":\"a\"} x", "f:3: not valid JSON"},
      {"{\"text\":\"\xff\"}", "f:3: not valid UTF-8"},
      {std::string("{\"text\":\"a\0b\"}", 14), "f:3: the record holds a NUL byte"},
      {"{\"text\":\"a\\u0000b\"}", "f:3: \"text\" holds a NUL character"},
      {"[1]", "f:3: the record is an array; it must be an object"},
      {"{\"text\":1}", "f:3: \"text\" is a number; it must be a string"},
      {"{\"instruction\":\"a\"}", "f:3: the record has no \"output\""},
      {"{\"instruction\":\"a\",\"input\":[],\"output\":\"b\"}", "f:3: \"input\" is an array; it must be a string"},
      {"{\"prompt\":\"a\"}", "f:3: the record has none of the keys"},
      {"{\"input_ids\":\"1\"}", "f:3: \"input_ids\" is a string; it must be an array of integers"},
      {"{\"input_ids\":[1,2.5]}", "f:3: \"input_ids\"[1] is not a whole number"},
      {"{\"input_ids\":[1,\"2\"]}", "f:3: \"input_ids\"[1] is a string"},
      {"{\"input_ids\":[18446744073709551615]}", "f:3: \"input_ids\"[0] is not a whole number in range"},
      {"{\"input_ids\":[100]}", "f:3: \"input_ids\"[0] is 100; token ids of this model are 0 to 99"},
      {"{\"input_ids\":[-100]}", "f:3: \"input_ids\"[0] is -100; token ids"},
      {"{\"input_ids\":[1],\"labels\":[-1]}", "f:3: \"labels\"[0] is -1; token ids of this model are 0 to 99, -100"},
      {"{\"input_ids\":[1,2],\"labels\":[1]}", "f:3: \"labels\" has 1 entries, \"input_ids\" 2"},
      {"{\"input_ids\":[]}", "f:3: \"input_ids\" is empty"},
      {"{\"input_ids\":[1,0],\"attention_mask\":[1,0]}", "f:3: \"attention_mask\" holds a 0"},
  };
  for (const auto& [line, message] : cases) {
    const std::string error = error_in(good + line);
    EXPECT_EQ(error.substr(0, message.size()), message) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
}

TEST(Records, ReadsConversationsAndPrompts) {
  const char* const chats[] = {
      (R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"function":)"
       R"({"name":"f","arguments":{}}}]}],"tools":[{"type":"function"}],"prompt":"a","text":"x"})"),
      R"({"messages":null,"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}],"system":null})",
      R"({"prompt":[{"role":"user","content":"a"}],"completion":[{"role":"assistant","content":"b"}],"tools":"[{}]"})",
  };
  for (const char* chat : chats) {
    const auto records = parse_all(chat);
    ASSERT_EQ(format_of(records.at(0)), RecordFormat::chat) << chat;
    EXPECT_EQ(std::get<ChatRecord>(records[0]).json, chat);
  }
  const auto prompts = parse_all(R"({"prompt":"a","completion":" b","messages":null})");
  EXPECT_EQ(std::get<PromptRecord>(prompts.at(0)).prompt, "a");
  EXPECT_EQ(std::get<PromptRecord>(prompts.at(0)).completion, " b");
}

TEST(Records, SaysWhatIsWrongWithAConversation) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"messages":[]})", "f:1: \"messages\" is empty; remove the record"},
      {R"({"messages":"[]"})", "f:1: \"messages\" is a string; it must be a list of messages. Where it is JSON: jq"},
      {R"({"messages":[1]})", "f:1: message 1 of \"messages\" must be an object"},
      {R"({"messages":[{"content":"a"}]})", "f:1: message 1 of \"messages\" has neither \"role\""},
      {R"({"messages":[{"role":1,"content":"a"}]})", "f:1: message 1 of \"messages\": \"role\" must be a string"},
      {R"({"messages":[{"role":"user"}]})", "f:1: message 1 of \"messages\" has no \"content\""},
      {R"({"messages":[{"role":"user","content":1}]})",
       "f:1: message 1 of \"messages\": \"content\" must be a string or"},
      {R"({"messages":[{"role":"user","content":"\u0000"}]})",
       "f:1: message 1 of \"messages\": \"content\" holds a NUL"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})",
       "f:1: message 1 of \"messages\": \"content\" has a part of type \"image_url\"; only text"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
       "f:1: message 1 of \"messages\": \"content\" has a part without \"text\""},
      {R"({"messages":[{"role":"user","content":[{"image":"a.png"},{"text":"b"}]}]})",
       "f:1: message 1 of \"messages\": \"content\" has a part with \"image\"; only text is trained on"},
      {R"({"messages":[{"role":"user","content":[{"type":"text","text":"b","video_url":{"url":"v"}}]}]})",
       "f:1: message 1 of \"messages\": \"content\" has a part with \"video_url\"; only text is trained on"},
      {R"({"conversations":[{"from":"human","value":[{"type":"audio","audio":"a.wav"}]}]})",
       "f:1: message 1 of \"conversations\": \"value\" has a part of type \"audio\"; only text is trained on"},
      {R"({"messages":[{"role":"assistant","tool_calls":{}}]})",
       "f:1: message 1 of \"messages\": \"tool_calls\" must be a list of calls"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{}}]}]})",
       "f:1: message 1 of \"messages\": \"tool_calls\": a call has no \"name\""},
      {R"({"messages":[{"role":"assistant","content":"a","thinking":1}]})",
       "f:1: message 1 of \"messages\": \"thinking\" must be a string"},
      {R"({"conversations":[{"from":"bot","value":"a"}]})",
       "f:1: message 1 of \"conversations\" is from \"bot\"; known are human, gpt, system and observation"},
      {R"({"conversations":[{"from":"gpt"}]})", "f:1: message 1 of \"conversations\" has no \"value\""},
      {R"({"messages":[{"role":"user","content":"a"}],"tools":[1]})", "f:1: \"tools\" must be a list of functions"},
      {R"({"messages":[{"role":"user","content":"a"}],"tools":"[1"})", "f:1: \"tools\" is a string that is not JSON"},
      {R"({"messages":[{"role":"user","content":"a"}],"system":1})",
       "f:1: \"system\" is a number; it must be a string"},
      {R"({"prompt":[],"completion":[{"role":"assistant","content":"b"}]})", "f:1: \"prompt\" is empty"},
      {R"({"prompt":"a","completion":1})", "f:1: \"completion\" is a number; it must be a string"},
  };
  for (const auto& [record, message] : cases) {
    const std::string error = error_in(record);
    EXPECT_EQ(error.substr(0, message.size()), message) << error;
  }
}

using Labels = std::vector<std::int32_t>;

TokenRecord tokens_of(const std::string& beside) {
  return std::get<TokenRecord>(parse_all("{\"input_ids\": [10, 11, 12, 13, 14, 15], " + beside + "}").at(0));
}

// TRL's, ms-swift's, verl's and Megatron's; each as integers, booleans, floats and as the one row of a batch.
TEST(Records, MasksOfOthersLeaveTokensOut) {
  const Labels masked = {-100, -100, -100, 13, 14, 15};
  for (const std::string key :
       {"completion_mask", "assistant_masks", "assistant_mask", "loss_mask", "loss_scale", "response_mask"})
    for (const std::string mask :
         {"[0,0,0,1,1,1]", "[false,false,false,true,true,true]", "[0.0,0.0,0.0,1.0,1.0,1.0]", "[[0,0,0,1,1,1]]"})
      EXPECT_EQ(tokens_of("\"" + key + "\": " + mask).labels, masked) << key << mask;
  // What any of them leaves out is left out, labels included.
  EXPECT_EQ(
      tokens_of(R"("labels":[10,11,12,13,14,-100],"completion_mask":[0,1,1,1,1,1],"assistant_masks":[1,1,0,1,1,1])")
          .labels,
      (Labels{-100, 11, -100, 13, 14, -100}));
  EXPECT_EQ(tokens_of(R"("completion_mask":null,"loss_mask":[])").labels, (Labels{10, 11, 12, 13, 14, 15}));
  const auto refused = [](const std::string& beside) { return error_of([&] { tokens_of(beside); }); };
  EXPECT_EQ(refused(R"("loss_mask":[0,0,0,1,1])"),
            "f:1: \"loss_mask\" has 5 entries, \"input_ids\" 6; there must be one a token");
  EXPECT_EQ(refused(R"("loss_scale":[0,0,0,0.5,1,1])"),
            "f:1: \"loss_scale\"[3] is 0.5; a token is trained (1) or not (0), weights of losses are not supported");
  EXPECT_NE(refused(R"("mask":[1,1,1,0,0,0])").find("the record has \"mask\": whether its ones are trained"),
            std::string::npos);
  EXPECT_NE(refused(R"("loss_mask":"0")").find("\"loss_mask\" is a string"), std::string::npos);
}

TEST(Records, PaddingIsRefusedInAnyForm) {
  for (const std::string mask :
       {"[1,1,1,1,0,0]", "[true,true,true,true,false,false]", "[1.0,1.0,1.0,1.0,0.0,0.0]", "[[1,1,1,1,0,0]]"})
    EXPECT_EQ(error_of([&] { tokens_of("\"attention_mask\": " + mask); }),
              "f:1: \"attention_mask\" holds a 0: the record is padded; remove the padding, batches need none");
  for (const std::string mask : {"[1,1,1,1,1,1]", "[true,true,true,true,true,true]", "[[1,1,1,1,1,1]]", "null"})
    EXPECT_TRUE(tokens_of("\"attention_mask\": " + mask).ends.empty());
}

TEST(Records, RowsThatOthersPackedAreTheirDocuments) {
  using Ends = std::vector<std::int64_t>;
  const std::vector<std::string> two = {
      R"("position_ids":[0,1,2,0,1,2])",
      R"("position_ids":[[0,1,2,0,1,2]])",
      R"("seq_lengths":[3,3])",
      R"("seq_lens":[3,3])",
      R"("attention_mask":[1,1,1,2,2,2])",
      R"("cu_seqlens":[0,3,6])",
      R"("cu_seq_lens_q":[0,3,6],"max_length_q":3)",
      R"("seq_idx":[0,0,0,1,1,1])",
      R"("segment_ids":[1,1,1,2,2,2])",
      R"("position_ids":[0,1,2,0,1,2],"seq_lengths":[3,3],"attention_mask":[1,1,1,1,1,1])"};
  for (const std::string& packed : two) EXPECT_EQ(tokens_of(packed).ends, (Ends{3, 6})) << packed;
  EXPECT_EQ(tokens_of(R"("position_ids":[0,1,2,3,4,5])").ends, Ends{6});
  EXPECT_EQ(tokens_of(R"("position_ids":[0,0,1,0,1,2])").ends, (Ends{1, 3, 6}));
  const std::vector<std::pair<std::string, std::string>> refused = {
      {R"("position_ids":[5,6,7,8,9,10])", "\"position_ids\"[0] is 5; positions that do not count from 0"},
      {R"("position_ids":[0,1,2,2,3,4])", "\"position_ids\"[3] is 2; positions that do not count from 0"},
      {R"("position_ids":[0,1,2])", "\"position_ids\" has 3 entries, \"input_ids\" 6"},
      {R"("position_ids":[[0,1,2,3,4,5],[0,1,2,3,4,5]])", "\"position_ids\"[0] is an array"},
      {R"("seq_lengths":[3,2])", "the lengths in \"seq_lengths\" are not those of 6 tokens"},
      {R"("seq_lengths":[6,0])", "\"seq_lengths\" has 0; a document has one token at least"},
      {R"("seq_lengths":[1e308,1e308])", "the lengths in \"seq_lengths\" are not those of 6 tokens"},
      {R"("cu_seqlens":[3,6])", "\"cu_seqlens\" must begin with 0"},
      {R"("attention_mask":[1,1,1,3,3,3])", "\"attention_mask\"[3] is 3; of a row of several documents"},
      {R"("attention_mask":[2,2,2,1,1,1])", "\"attention_mask\"[0] is 2; of a row of several documents"},
      {R"("seq_lengths":[3,3],"position_ids":[0,1,0,1,2,3])",
       "\"seq_lengths\" divides the row into other documents than \"position_ids\""},
  };
  for (const auto& [beside, message] : refused)
    EXPECT_EQ(error_of([&, b = beside] { tokens_of(b); }).find("f:1: " + message), 0U)
        << beside << error_of([&, b = beside] { tokens_of(b); });
}

TEST(Records, KeysThatMeanSomethingAreRefusedWhereTheyHaveNoPlace) {
  const std::string prompt = R"({"prompt":"p","completion":"c",)", text = R"({"text":"t",)",
                    alpaca = R"({"instruction":"i","output":"o",)",
                    chat = R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],)";
  const std::vector<std::pair<std::string, std::string>> refused = {
      {prompt + R"("system":"s"})", "\"system\": this kind of record has no place for it"},
      {text + R"("system":"s"})", "\"system\": this kind of record has no place for it"},
      {prompt + R"("history":[["a","b"]]})", "\"history\": this kind"},
      {alpaca + R"("tools":"[{}]"})", "\"tools\": this kind"},
      {alpaca + R"("system_prompt":"s"})", "\"system_prompt\": a system message is read from \"system\""},
      {chat + R"("history":[["a","b"]]})", "\"history\": earlier turns"},
      {chat + R"("images":["a.png"]})", "\"images\": only text is trained on"},
      {chat + R"("image":{"bytes":null,"path":"a.png"}})", "\"image\": only text is trained on"},
      {prompt + R"("videos":["a.mp4"]})", "\"videos\": only text is trained on"},
      {text + R"("audio":{"array":[0.5],"sampling_rate":16000}})", "\"audio\": only text is trained on"},
      {chat + R"("completion_mask":[0,1]})", "\"completion_mask\": counts tokens, and the record has no \"input_ids\""},
      {text + R"("position_ids":[0,1]})", "\"position_ids\": counts tokens"},
      {text + R"("weight":0})", "\"weight\": records are trained on as they are"},
      {prompt + R"("loss":false})", "\"loss\": records are trained"},
      {prompt + R"("label":false})", "\"label\": the answer is one that is not wanted"},
      {chat + R"("kto_tag":false})", "\"kto_tag\": the answer is one that is not wanted"},
      {R"({"input_ids":[1],"weight":[0.5]})", "\"weight\": records are trained"},
      {R"({"input_ids":[1],"pixel_values":[[0.5]]})", "\"pixel_values\": only text"},
  };
  for (const auto& [record, message] : refused)
    EXPECT_EQ(error_in(record).find("f:1: the record has " + message), 0U) << record << error_in(record);
  for (const std::string& record : std::vector<std::string>{
           prompt + R"("system":"","history":[],"weight":1,"train":true,"label":true})",
           text + R"("label":0,"loss":2.5})", R"({"text":"rendered: s t","system":"s"})",
           chat + R"("images":[],"label":"good"})", chat + R"("image":null,"videos":[],"audio":null})",
           R"({"messages":[{"role":"user","content":[{"type":"text","text":"a","image":null}]}]})"})
    EXPECT_EQ(error_in(record), "");
}

TEST(Records, FlagsOfMessagesMustBePlain) {
  const auto error = [](const std::string& role, const std::string& flag) {
    return error_in(R"({"messages":[{"role":"user","content":"a"},{"role":")" + role + R"(","content":"b",)" + flag +
                    "}]}");
  };
  for (const char* flag : {R"("train":false)", R"("training":0)", R"("loss":0.0)", R"("loss_mask":1)", R"("weight":0)",
                           R"("masked":true)", R"("train":null)"})
    EXPECT_EQ(error("assistant", flag), "");
  EXPECT_EQ(
      error("assistant", R"("weight":0.5)"),
      "f:1: message 2 of \"messages\": \"weight\" must be 0 or false, for a message that is not trained, or else 1 "
      "or true");
  EXPECT_NE(error("assistant", R"("train":"no")").find("\"train\" must be 0 or false"), std::string::npos);
  EXPECT_NE(error("user", R"("train":true)").find("only messages of the assistant are trained"), std::string::npos);
  EXPECT_EQ(error("user", R"("train":false)"), "");
  EXPECT_NE(error("assistant", R"("train_detail":[{"begin_offset":0}])").find("trained as a whole or not at all"),
            std::string::npos);
  EXPECT_NE(error("tool_call", R"("x":1)").find("has the role \"tool_call\"; calls of functions"), std::string::npos);
}

TEST(Records, CountsTheKeysThatAreNotUsed) {
  RecordParser parser("f", 100);
  const std::string text = R"({"text":"a","id":1,"strange":[1],"none":null,"meta":{}})"
                           "\n"
                           R"({"text":"a","id":2,"id":3})"
                           "\n";
  RecordReader reader("f", text);
  for (RawRecord raw; reader.next(raw);) parser.parse(raw);
  EXPECT_EQ(parser.notes().count(NoteKind::harmless_key, "id"), 2);
  EXPECT_EQ(parser.notes().count(NoteKind::unknown_key, "strange"), 1);
  EXPECT_EQ(parser.notes().of(NoteKind::unknown_key).size() + parser.notes().of(NoteKind::harmless_key).size(), 2U);
  RecordParser ids("f", 100);
  ids.parse({R"({"input_ids":[1,2],"seq_lengths":[1,1],"token_type_ids":[0,0],"x\ny":1})", 1});
  EXPECT_EQ(ids.notes().count(NoteKind::packed_row), 1);
  EXPECT_EQ(ids.notes().count(NoteKind::harmless_key, "token_type_ids"), 1);
  EXPECT_EQ(ids.notes().count(NoteKind::unknown_key, "x\\x0ay"), 1);
}

TEST(RecordNotes, FitIntoACacheWhateverTheFileHolds) {
  RecordNotes notes;
  for (int i = 0; i < 3000; ++i) {
    notes.note(NoteKind::unknown_key, std::to_string(i) + std::string(100, 'x'));
    notes.note(NoteKind::unknown_key, "often");
    notes.note(NoteKind::ends_twice);
    notes.end_record();
  }
  notes.keep_most_counted();
  const RecordNotes read = RecordNotes::parse(notes.text());
  EXPECT_LE(notes.text().size(), RecordNotes::most_text);
  EXPECT_EQ(read.count(NoteKind::unknown_key, "often"), 3000);
  EXPECT_EQ(read.count(NoteKind::ends_twice), 3000);
  EXPECT_GT(read.count(NoteKind::unknown_key), 2900);
  EXPECT_EQ(read, notes);
  for (const char* bad : {"", "x", "99 1 a\n", "1", "1 2", "1 -3 a\n", "\n\n"})
    EXPECT_TRUE(RecordNotes::parse(bad).empty());
}

// The commands were tried with jq 1.6.
TEST(Records, AForeignFormatIsRefusedWithTheCommandThatConvertsIt) {
  const auto ends_with = [](const std::string& record, std::string_view command) {
    const std::string error = error_in(record);
    EXPECT_TRUE(error.ends_with(command)) << error;
  };
  ends_with(
      R"({"question":"a","answer":"b"})",
      "; convert the file: jq -c '{messages: [{role: \"user\", content: .question}, {role: \"assistant\", content: "
      ".answer}]}' f > converted.jsonl");
  ends_with(R"([{"prompt":"a","response":"b"}])", "jq -c '.[] | {prompt, completion: .response}' f > converted.jsonl");
  ends_with(R"({"instruction":"a","context":"c","response":"b"})",
            "jq -c '{instruction, input: (.context // .input // \"\"), output: .response}' f > converted.jsonl");
  const std::string preferences = error_in(R"({"prompt":"a","chosen":"b","rejected":"c"})");
  EXPECT_NE(preferences.find("no preference training"), std::string::npos) << preferences;
  EXPECT_TRUE(preferences.ends_with("f > converted.jsonl")) << preferences;
  ends_with(R"({"unknown":"a"})", "\"text\" and \"input_ids\"");
  ends_with(
      R"({"conversation":[{"human":"a","assistant":"b"}]})",
      R"(jq -c '{messages: [.conversation[] | if has("role") or has("from") then . else (.system // "" | select(. != "") )"
      R"(| {role: "system", content: .}), {role: "user", content: (.human // .input)}, {role: "assistant", content: )"
      R"((.assistant // .output)} end]}' f > converted.jsonl)");
}

// LLaMA-Factory's Alpaca has them, and without them a model would learn other answers than the data has.
TEST(Records, AlpacaWithEarlierTurnsOrASystemMessageIsRefused) {
  const std::string error = error_in(R"({"instruction":"a","output":"b","history":[["x","y"]],"system":""})");
  EXPECT_EQ(
      error,
      R"(f:1: the record has "history", for which the Alpaca prompt has no place; make it a conversation; )"
      R"(convert the file: jq -c '{messages: ([.system // "" | select(. != "") | {role: "system", content: .}] + )"
      R"([.history // [] | .[] | {role: "user", content: .[0]}, {role: "assistant", content: .[1]}] + )"
      R"([{role: "user", content: ([.instruction, .input // ""] | map(select(. != "")) | join("\n"))}, )"
      R"({role: "assistant", content: .output}])}' f > converted.jsonl)");
  EXPECT_NE(error_in(R"([{"instruction":"a","output":"b","system":"s"}])").find("\"system\""), std::string::npos);
  EXPECT_NE(error_in(R"({"instruction":"a","output":"b","history":{"a":1}})").find("\"history\""), std::string::npos);
  EXPECT_EQ(error_in(R"({"instruction":"a","output":"b","history":[],"system":null,"input":""})"), "");
}

TEST(Records, RefusesMalformedArraysByLineAndElement) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[\n{\"text\":\"a\"},\n{\"text\":2}]", "f:3 (element 1): \"text\" is a number"},
      {"[{\"text\":\"a\nb\"},\n{\"text\":\"b\"}]", "f:1 (element 0): not valid JSON"},
      {"[{\"text\":\"a\\\nb\"},\n{\"text\":2}]", "f:1 (element 0): not valid JSON"},
      {"[\n{\"text\":\"a\"}\n{\"text\":\"b\"}]", "f:2 (element 0): not valid JSON"},
      {"[\n{\"text\":\"a\"},,{\"text\":\"b\"}]", "f:2 (element 1): not valid JSON"},
      {"[\n{\"text\":\"a\"},\n]", "f:3: the array ends in a comma"},
      {"[\n{\"text\":\"a\"},\n{\"text\":\"b", "f:3 (element 1): the file ends before the array does"},
      {"[", "f:1 (element 0): the file ends before the array does"},
      {"[\n{\"text\":\"a\"}\n]\nx", "f:4: there is text after the array, which closes on line 3"},
      {"[\n}},{\"text\":\"a\"}]", "f:2 (element 0): not valid JSON"},
  };
  for (const auto& [content, message] : cases) {
    const std::string error = error_in(content);
    EXPECT_EQ(error.substr(0, message.size()), message) << error;
  }
}

TEST(Records, CountsLinesOfMultiLineElements) {
  EXPECT_EQ(error_in("[\n{\n\"text\":\n\"a\"\n}\n,\n\n{\"text\":0}]").substr(0, 17), "f:8 (element 1): ");
}

TEST(Records, RefusesWhatIsNotJson) {
  EXPECT_EQ(error_in("instruction").substr(0, 23), "f:1: begins with 'i'; a");
  EXPECT_EQ(error_in("Once, long ago\n").substr(0, 23), "f:1: begins with 'O'; a");
  EXPECT_EQ(error_in("\n\xff{").substr(0, 27), "f:2: begins with byte 0xff;");
  // A pretty-printed object: its first line is no record, and the message must say what is expected.
  EXPECT_NE(error_in("{\n\"text\":\"a\"\n}").find("holds one whole record a line"), std::string::npos);
}

// Files that people take for data, each with what makes JSON of it.
TEST(Records, SaysWhatAFileIsAndHowItBecomesJson) {
  const auto says = [](const std::string& content, const std::vector<std::string>& parts) {
    const std::string error = error_in(content);
    for (const std::string& part : parts) EXPECT_NE(error.find(part), std::string::npos) << part << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  };
  says("instruction,output\na,b\n",
       {"f:1: is a table with commas", "(CSV)", "csv.DictReader(sys.stdin)]' < f > converted.jsonl"});
  says("prompt\tanswer\na\tb\n", {"(TSV)", "csv.DictReader(sys.stdin, delimiter=\"\\t\")"});
  says("\x1f\x8b\b", {"gzip", "gunzip"});
  says("\x28\xb5\x2f\xfd", {"unzstd"});
  says("PK\x03\x04", {"unzip"});
  says("PAR1", {".parquet"});
  says("\xff\xfe{", {"UTF-16", "iconv"});
}

TEST(Records, SurvivesDeepNesting) {
  EXPECT_NE(error_in("{\"text\":" + std::string(100000, '[') + "}"), "");
  EXPECT_NE(error_in("[" + std::string(100000, '[')), "");
  EXPECT_NE(error_in("[" + std::string(100000, '}') + "]"), "");
}

// As in a sparse file that somebody took for data: the search for the end of the record ends where its size does.
SO_LABEL(no_asan, "Records.ATerabyteWithoutALineEndIsRefusedSoon");
TEST(Records, ATerabyteWithoutALineEndIsRefusedSoon) {
  constexpr std::size_t bytes = std::size_t{1} << 40;
  for (const std::string_view begin : {"{", "[{"}) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) GTEST_SKIP() << "no address space";
    std::memcpy(memory, begin.data(), begin.size());
    RecordReader reader("d.jsonl", {static_cast<const char*>(memory), bytes});
    RawRecord record;
    const std::string refused = error_of([&] { reader.next(record); });
    EXPECT_TRUE(refused.starts_with("d.jsonl:1")) << refused;
    EXPECT_NE(refused.find("the record has more than 268435456 bytes"), std::string::npos) << refused;
    ::munmap(memory, bytes);
  }
}

}  // namespace
}  // namespace so
