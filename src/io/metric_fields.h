// The fields of metrics.jsonl: what docs/metrics.md and the tests know of them. io/metrics.cpp writes them.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace so {

struct MetricField {
  std::string_view line;  // step, evaluation, samples, start or end: the kind of line that has it
  // Inside of others "outer.inner", of the objects in a list "outer[].inner"; NAME and FIGURE stand for several.
  std::string_view name;
  std::string_view unit;  // may be empty
  std::string_view meaning;
  std::string_view tensorboard = {};  // the scalar of the same value; may be empty
};

// In the order of the lines' kinds, and in each in the order in which they are written.
std::span<const MetricField> metric_fields();

// A Markdown table for each kind of line.
std::string metric_fields_markdown();

}  // namespace so
