// JSON read as a stream of events. For .cpp files of this room only: it brings in nlohmann's headers.
//
// Untrusted headers are read so and not as a tree: a tree of a 100 MB header made of "[[[[" takes gigabytes, keeps
// only the last of two equal keys, and turns an integer beyond 64 bits into a float. Here each event is checked when
// it comes, and nothing is kept that the reader did not ask for.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"

namespace so {

// Receives the events of one document. Derived classes override what they accept; everything else is an Error
// "<source>: <where()> ... may not be <kind>". Handlers throw; they never return false.
class JsonEvents {
 public:
  explicit JsonEvents(std::string_view source) : source_(source) {}
  virtual ~JsonEvents() = default;

  virtual void on_null() { refuse("null"); }
  virtual void on_boolean(bool) { refuse("a boolean"); }
  virtual void on_unsigned(std::uint64_t) { refuse("an integer"); }
  virtual void on_negative(std::int64_t) { refuse("a negative integer"); }
  virtual void on_real(double, const std::string&) {
    refuse("a number with a fraction, an exponent or too many digits");
  }
  virtual void on_string(std::string&) { refuse("a string"); }
  virtual void on_start_object() { refuse("an object"); }
  virtual void on_end_object() {}
  virtual void on_start_array() { refuse("an array"); }
  virtual void on_end_array() {}
  virtual void on_key(std::string&) {}

  // The functions that the parser calls.
  bool null() {
    on_null();
    return true;
  }
  bool boolean(bool value) {
    on_boolean(value);
    return true;
  }
  bool number_integer(std::int64_t value) {
    on_negative(value);
    return true;
  }
  bool number_unsigned(std::uint64_t value) {
    on_unsigned(value);
    return true;
  }
  bool number_float(double value, const std::string& text) {
    on_real(value, text);
    return true;
  }
  bool string(std::string& value) {
    on_string(value);
    return true;
  }
  bool binary(nlohmann::json::binary_t&) { refuse("binary"); }
  bool start_object(std::size_t) {
    on_start_object();
    return true;
  }
  bool key(std::string& value) {
    on_key(value);
    return true;
  }
  bool end_object() {
    on_end_object();
    return true;
  }
  bool start_array(std::size_t) {
    on_start_array();
    return true;
  }
  bool end_array() {
    on_end_array();
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) { fail_at(position); }
  [[noreturn]] void fail_at(std::size_t position) const {
    fail("{}: not valid JSON at byte {}; the file is damaged", source_, position);
  }

 protected:
  virtual std::string where() const = 0;  // what the next value belongs to, for messages
  [[noreturn]] void refuse(std::string_view kind) const { fail("{}: {} may not be {}", source_, where(), kind); }
  const std::string& source() const { return source_; }

 private:
  std::string source_;
};

inline void parse_json_events(std::string_view json, JsonEvents& events) {
  // To nlohmann's lexer a NUL ends the input, and what follows it would pass unseen. JSON allows it nowhere.
  if (const auto nul = json.find('\0'); nul != std::string_view::npos) {
    events.fail_at(nul);
  }
  const auto plain = with_plain_numbers(json);
  const std::string_view text = plain ? std::string_view(*plain) : json;
  nlohmann::json::sax_parse(text.begin(), text.end(), &events);
}

}  // namespace so
