// Rows of option tables that several commands have in the same words, where a group of options
// (options/option_groups.h) cannot know them.
#pragma once

#include <string>
#include <type_traits>

#include "io/presets.h"
#include "options/option_groups.h"

namespace so {

// The row of a model that is named by its config.json or as a preset; no other file of it is needed.
template <class S, class Member>
auto& add_config_row(OptionTable<S>& table, Member member) {
  return table
      .add("config", member,
           "config.json of the model, a directory that has one, or a preset: " + names_of(model_presets()))
      .metavar("FILE|DIR|PRESET")
      .hub(HubUse::config)
      .elsewhere("model");
}

// The last rows of a command that computes.
template <class S>
void add_machine_and_messages(OptionTable<S>& table) {
  table.group("Machine");
  table.borrow(compute_rows(), default_from::ours);
  if constexpr (std::is_base_of_v<RankOptions, S>) table.borrow(rank_rows(), default_from::ours);
  table.group("Messages");
  table.take(message_rows());
}

}  // namespace so
