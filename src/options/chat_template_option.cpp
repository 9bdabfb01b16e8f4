#include "options/chat_template_option.h"

#include "options/option_groups.h"

namespace so {

const OptionTable<ChatTemplateOption>& chat_template_rows() {
  static const auto rows = [] {
    OptionTable<ChatTemplateOption> t;
    t.add("chat_template", &ChatTemplateOption::chat_template,
          "How conversations become text: a file of Jinja, as chat_template.jinja; chatml; or alpaca, for a model of "
          "Alpaca records. A model that is trained with it has it then")
        .metavar("FILE")
        .default_from(default_from::ours)
        .when_unset("the model's own")
        .affects_results()
        .elsewhere("chat_template_path");
    return t;
  }();
  return rows;
}

}  // namespace so
