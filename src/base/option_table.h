// Options declared once. A command's options are the members of a plain struct, and one table row a member says the
// rest: name, range or choices, unit, help, where the default comes from, which DeepSpeed key means the same, whether
// it affects results. Command line, help, documentation, settings log, checkpoint record and the DeepSpeed file all
// derive from that row; to add an option is to add the member and its row.
//
//   OptionTable<TrainOptions> table;
//   table.group("Optimizer");
//   table.add("lr", &TrainOptions::lr, "Peak learning rate").above(0).deepspeed("optimizer.params.lr");
//
// Options that several commands share form a group: a struct with its own table. Commands have the group as a base and
// take its rows, so an option that is added to the group is added to all of them.
//
// A default is the member's initializer. A member that is a std::optional may be unset. Outside of the struct, a text
// that is unset is empty; a number's row says by or_else() which number stands for that. Nothing here is thread-safe;
// tables are built once and then only read.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/hub_use.h"

namespace so {

// The value of any option outside its struct; an enum is its name.
using OptionValue = std::variant<bool, std::int64_t, double, std::string>;

enum class OptionKind : std::uint8_t { boolean, integer, real, text, choice };

// The names of an enum that is an option: specialise with
//   static constexpr std::pair<E, std::string_view> list[] = {...};
template <class E>
struct EnumNames;

template <class E>
requires std::is_enum_v<E> std::string_view enum_name(E value) {
  for (const auto& [e, name] : EnumNames<E>::list)
    if (e == value) return name;
  SO_BUG("enum value {} has no name", static_cast<int>(value));
}

// One row. The functions below the data are how a table writes it; each returns the row.
struct OptionSpec {
  std::string name;
  std::string group;
  std::string help;
  OptionKind kind = OptionKind::text;
  OptionValue default_value;
  std::vector<std::string> choices;  // kind choice
  std::vector<std::string> known;    // kind text: values that a shell completes; others are taken too

  std::string value_name;      // in help: DIR, FILE, ...
  std::string value_unit;      // tokens, bytes, ...
  std::string default_origin;  // who set this default: "TrainingArguments", "published script", ...
  std::string unset_meaning;   // in help, what an empty text means
  double lower = -std::numeric_limits<double>::infinity(), upper = std::numeric_limits<double>::infinity();
  bool lower_open = false, upper_open = false;
  std::optional<OptionValue> special_value;  // allowed outside the range; of an optional member, stands for unset
  std::string special_meaning;
  std::optional<std::string> bare_value;  // what "--name" alone stands for; set for booleans
  std::vector<std::string> deepspeed_keys;
  std::vector<std::string> aliases;        // what transformers calls it, where it means the same: taken as its name is
  std::vector<std::string> foreign_names;  // what other programs call it; only to suggest the right name
  std::vector<std::pair<std::string, std::string>> foreign_values;  // what others call a choice, and its name here
  bool is_required = false;
  bool is_file_only = false;      // set by the DeepSpeed file, not on the command line
  bool changes_results = false;   // a resumed run must have the same value
  bool may_change = false;        // or another one from then on, where that is asked for by name
  bool may_be_unset = false;      // the member is a std::optional
  bool is_list = false;           // a text with commas between its items
  HubUse hub_use = HubUse::none;  // else a text may name a repository in place of a path (commands/program/hub_ids.h)

  std::function<OptionValue(const OptionSpec&, const void*)> read;
  std::function<void(const OptionSpec&, void*, const OptionValue&)> write;
  bool unset_by_default = false;

  OptionSpec& metavar(std::string text) {
    value_name = std::move(text);
    return *this;
  }
  OptionSpec& knows(std::vector<std::string> values) {
    known = std::move(values);
    return *this;
  }
  OptionSpec& unit(std::string text) {
    value_unit = std::move(text);
    return *this;
  }
  OptionSpec& default_from(std::string text) {
    default_origin = std::move(text);
    return *this;
  }
  OptionSpec& when_unset(std::string text) {
    unset_meaning = std::move(text);
    return *this;
  }
  OptionSpec& above(double bound) {
    lower = bound;
    lower_open = true;
    return *this;
  }
  OptionSpec& at_least(double bound) {
    lower = bound;
    return *this;
  }
  OptionSpec& below(double bound) {
    upper = bound;
    upper_open = true;
    return *this;
  }
  OptionSpec& at_most(double bound) {
    upper = bound;
    return *this;
  }
  OptionSpec& or_else(OptionValue value, std::string meaning) {
    if (unset_by_default) default_value = value;
    special_value = std::move(value);
    special_meaning = std::move(meaning);
    return *this;
  }
  OptionSpec& bare(std::string value) {
    bare_value = std::move(value);
    return *this;
  }
  OptionSpec& deepspeed(std::string key) {
    deepspeed_keys.push_back(std::move(key));
    return *this;
  }
  OptionSpec& also(std::string alias) {
    aliases.push_back(std::move(alias));
    return *this;
  }
  OptionSpec& value_elsewhere(std::string foreign, std::string here) {
    foreign_values.emplace_back(std::move(foreign), std::move(here));
    return *this;
  }
  OptionSpec& elsewhere(std::string foreign) {
    foreign_names.push_back(std::move(foreign));
    return *this;
  }
  OptionSpec& required() {
    is_required = true;
    return *this;
  }
  OptionSpec& list() {
    is_list = true;
    return *this;
  }
  OptionSpec& hub(HubUse use) {
    hub_use = use;
    return *this;
  }
  OptionSpec& file_only() {
    is_file_only = true;
    return *this;
  }
  OptionSpec& affects_results() {
    changes_results = true;
    return *this;
  }
  // The same, but another value has a meaning from a resumed run's next step on.
  OptionSpec& affects_later_steps() {
    may_change = true;
    return affects_results();
  }
};

// The rows of a table without their struct's type.
class OptionRows {
 public:
  std::span<const OptionSpec> specs() const { return specs_; }
  const OptionSpec* find(std::string_view name) const;  // null when there is none
  const OptionSpec& at(std::string_view name) const;    // Bug when there is none
  // The row that a user calls so: by its name, or by one of its aliases. Null when there is none.
  const OptionSpec* find_given(std::string_view name) const;

  // A row to be said otherwise than its group says it. Bug when there is none.
  OptionSpec& row(std::string_view name);

  // An option that one might expect from other programs, commands or versions, and why there is none. A run file of an
  // earlier version may still give it a value that asks for nothing, one of `idle_values`.
  struct Absent {
    std::string name, why;
    std::vector<std::string> idle_values;
  };
  void lacks(std::string name, std::string why, std::vector<std::string> idle_values = {}) {
    absent_.push_back({std::move(name), std::move(why), std::move(idle_values)});
  }
  std::span<const Absent> absent() const { return absent_; }

 protected:
  OptionSpec& append(OptionSpec spec);
  std::string group_;
  std::vector<OptionSpec> specs_;
  std::vector<Absent> absent_;
};

// A struct seen through its table. Non-owning: valid while both live.
class OptionsView {
 public:
  OptionsView(const OptionRows& rows, const void* object) : rows_(&rows), object_(object) {}
  const OptionRows& rows() const { return *rows_; }
  OptionValue get(const OptionSpec& spec) const { return spec.read(spec, object_); }
  OptionValue get(std::string_view name) const { return get(rows_->at(name)); }

 private:
  const OptionRows* rows_;
  const void* object_;
};

class OptionsRef : public OptionsView {
 public:
  OptionsRef(const OptionRows& rows, void* object) : OptionsView(rows, object), object_(object) {}
  // `value` must have passed check_value.
  void set(const OptionSpec& spec, const OptionValue& value) const { spec.write(spec, object_, value); }

 private:
  void* object_;
};

template <class T>
struct OptionalMember {
  using Value = T;
  static constexpr bool may_be_unset = false;
};
template <class T>
struct OptionalMember<std::optional<T>> {
  using Value = T;
  static constexpr bool may_be_unset = true;
};

// The table of struct S. Members may be bool, int, std::int64_t, double, std::string or an enum with EnumNames, or a
// std::optional of one of them but bool. They may be those of a base of S.
template <class S>
class OptionTable : public OptionRows {
 public:
  void group(std::string title) { group_ = std::move(title); }

  template <class Member, class B>
  requires std::is_base_of_v<B, S> OptionSpec& add(std::string name, Member B::*of_base, std::string help) {
    using T = typename OptionalMember<Member>::Value;
    Member S::*const member = of_base;
    OptionSpec spec;
    spec.name = std::move(name);
    spec.help = std::move(help);
    spec.may_be_unset = OptionalMember<Member>::may_be_unset;
    if constexpr (std::is_same_v<T, bool>) {
      static_assert(std::is_same_v<Member, bool>);
      spec.kind = OptionKind::boolean;
      spec.bare_value = "true";
    } else if constexpr (std::is_enum_v<T>) {
      spec.kind = OptionKind::choice;
      for (const auto& [value, choice] : EnumNames<T>::list) spec.choices.emplace_back(choice);
    } else if constexpr (std::is_integral_v<T>) {
      static_assert(std::is_same_v<T, int> || std::is_same_v<T, std::int64_t>);
      spec.kind = OptionKind::integer;
      spec.lower = static_cast<double>(std::numeric_limits<T>::min());
      spec.upper = static_cast<double>(std::numeric_limits<T>::max());
    } else if constexpr (std::is_same_v<T, double>) {
      spec.kind = OptionKind::real;
    } else {
      static_assert(std::is_same_v<T, std::string>);
    }
    spec.read = [member](const OptionSpec& row, const void* object) -> OptionValue {
      const Member& value = static_cast<const S*>(object)->*member;
      if constexpr (OptionalMember<Member>::may_be_unset) {
        return value ? outside(*value) : unset(row);
      } else {
        return outside(value);
      }
    };
    spec.write = [member](const OptionSpec& row, void* object, const OptionValue& value) {
      Member& target = static_cast<S*>(object)->*member;
      if constexpr (OptionalMember<Member>::may_be_unset) {
        target.reset();
        if (value != unset(row)) target = inside<T>(value);
      } else {
        target = inside<T>(value);
      }
    };
    const S defaults{};
    if constexpr (OptionalMember<Member>::may_be_unset) spec.unset_by_default = !(defaults.*member);
    if (!spec.unset_by_default || spec.kind == OptionKind::text) spec.default_value = spec.read(spec, &defaults);
    return append(std::move(spec));
  }

  // The rows of a group that S has as a base, under the heading of now and with the defaults of S.
  template <class G>
  requires std::is_base_of_v<G, S>
  void take(const OptionTable<G>& rows) {
    const S defaults{};
    for (OptionSpec spec : rows.specs()) {
      spec.read = [read = spec.read](const OptionSpec& row, const void* object) {
        return read(row, static_cast<const G*>(static_cast<const S*>(object)));
      };
      spec.write = [write = spec.write](const OptionSpec& row, void* object, const OptionValue& value) {
        write(row, static_cast<G*>(static_cast<S*>(object)), value);
      };
      spec.default_value = spec.read(spec, &defaults);
      append(std::move(spec));
    }
  }
  // The same for a command that has neither a DeepSpeed file nor a checkpoint. `origin` is where its defaults come
  // from.
  template <class G>
  requires std::is_base_of_v<G, S>
  void borrow(const OptionTable<G>& rows, const std::string& origin) {
    take(rows);
    for (std::size_t i = specs_.size() - rows.specs().size(); i < specs_.size(); ++i) {
      if (!specs_[i].is_required) specs_[i].default_origin = origin;
      specs_[i].deepspeed_keys.clear();
      specs_[i].changes_results = specs_[i].may_change = false;
    }
  }

  OptionsView view(const S& options) const { return {*this, &options}; }
  OptionsRef ref(S& options) const { return {*this, &options}; }

 private:
  template <class T>
  static OptionValue outside(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      return std::string(enum_name(value));
    } else if constexpr (std::is_same_v<T, int>) {
      return static_cast<std::int64_t>(value);
    } else {
      return value;
    }
  }
  template <class T>
  static T inside(const OptionValue& value) {
    if constexpr (std::is_enum_v<T>) {
      for (const auto& [e, choice] : EnumNames<T>::list)
        if (choice == std::get<std::string>(value)) return e;
      SO_BUG("{} is no choice", std::get<std::string>(value));
    } else if constexpr (std::is_same_v<T, int>) {
      return static_cast<int>(std::get<std::int64_t>(value));
    } else {
      return std::get<T>(value);
    }
  }
  static OptionValue unset(const OptionSpec& row) {
    SO_CHECK(row.special_value || row.kind == OptionKind::text, "nothing stands for --{} unset", row.name);
    return row.special_value ? *row.special_value : OptionValue(std::string());
  }
};

// Who gave a value; a later one wins over an earlier one.
enum class Origin : std::uint8_t { built_in, file, run_file, command_line };  // file: DeepSpeed's
std::string_view name_of(Origin origin);  // "default", "file", "run file", "command line"

struct OptionOrigin {
  Origin origin = Origin::built_in;
  std::string where;       // file and key, or a derivation
  std::string overridden;  // the value that lost, and where it stood; empty without a conflict
};

class OptionOrigins {
 public:
  const OptionOrigin& of(std::string_view name) const;
  bool given(std::string_view name) const { return of(name).origin != Origin::built_in; }
  OptionOrigin& operator[](std::string_view name);
  std::vector<std::string> notes;  // remarks for the settings log that belong to no single option

 private:
  std::map<std::string, OptionOrigin, std::less<>> entries_;
};

// Text to a checked value. `where` opens the error message: "--lr", "ds.json: optimizer.params.lr".
OptionValue parse_value(const OptionSpec& spec, std::string_view text, std::string_view where);
// Range and choices; also widens an integer given for a real, and narrows 4e8 given for an integer.
OptionValue check_value(const OptionSpec& spec, OptionValue value, std::string_view where);

// Sets an option unless a stronger origin has set it already; two different given values leave a note of the conflict.
void assign(OptionsRef options, OptionOrigins& origins, const OptionSpec& spec, const OptionValue& value, Origin origin,
            std::string where);

// Fails unless every required option has a value, naming all that lack one.
void check_required(OptionsView options);

std::string to_string(const OptionValue& value);      // shortest text that reads back as the same value
std::string describe_values(const OptionSpec& spec);  // "NUMBER > 0", "cosine|linear|constant": for help and docs

// An option as it is in effect: its value with the unit, for people.
struct EffectiveSetting {
  std::string_view name;  // of the row
  std::string value;
  const OptionOrigin* origin;
};
std::vector<EffectiveSetting> effective_settings(OptionsView options, const OptionOrigins& origins);

// The effective settings, a line an option: value, unit, origin, and the conflict if there was one.
std::string settings_log(OptionsView options, const OptionOrigins& origins);
// Those of them that were given and are not the defaults.
std::string changed_settings_log(OptionsView options, const OptionOrigins& origins);

// The record for a checkpoint: one JSON object, name to value, every option of the table.
std::string to_json(OptionsView options);
// An option that is not as recorded, and how: "lr: 1e-05 recorded, 2e-05 now".
struct OptionDifference {
  const OptionSpec* spec;
  std::string text;
};
// How the options that affect results differ from a record made by to_json. An option that the record does not have
// counts as its default. `more`: further options that affect them here. Fails if `record` is not such an object;
// `where` names it.
std::vector<OptionDifference> result_differences(OptionsView options, std::string_view record, std::string_view where,
                                                 std::span<const std::string_view> more = {});

// An option and what stands behind it, "--lr X"; and what it means, with its range and default.
std::string option_synopsis(const OptionSpec& spec);
std::string option_meaning(const OptionSpec& spec);

// The options part of --help: groups, names, values, defaults. Lines of at most `columns`, which are 40 at least.
std::string help_text(const OptionRows& rows, std::size_t columns);
// The same as a Markdown table a group, with the defaults' sources and the DeepSpeed keys.
std::string markdown_text(const OptionRows& rows);

// The candidate with the least edit distance to `name` (case and '-' against '_' do not count), or empty if none is
// near enough to be what was meant.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

// Says which option was meant by `name`, which is none that `rows` has on a command line: "; here it is --lr", "; did
// you mean --lr?", or empty. Fails for an option that only a DeepSpeed file sets, and for one whose absence has a
// reason. `dashes` stands before the names: "--", or nothing.
std::string meant_option(const OptionRows& rows, std::string_view name, std::string_view dashes);

std::string join(std::span<const std::string> texts, std::string_view separator);

// Text from outside for a one-line message: in double quotes, control characters escaped, long text cut.
std::string in_quotes(std::string_view text);

}  // namespace so
