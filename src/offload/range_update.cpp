#include "offload/range_update.h"

#include <algorithm>
#include <vector>

namespace so {

void update_range(DeviceAdamW& adamw, Stream& stream, const AdamWStep& step, const ParameterLayout& layout, Range range,
                  Tensor gradient, AdamWState state, Tensor weights) {
  if (range.size() == 0) return;
  struct Group {
    double lr_multiplier;
    std::vector<AdamWRun> runs;
  };
  std::vector<Group> groups;  // a few
  for (const ParameterLayout::Run& run : layout.runs(range)) {
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& other) { return other.lr_multiplier == run.lr_multiplier; });
    if (group == groups.end()) group = groups.insert(group, {run.lr_multiplier, {}});
    group->runs.push_back({run.range.begin - range.begin, run.range.end - range.begin, run.decay});
  }
  for (const Group& group : groups)
    adamw.update(stream, with_lr_multiplier(step, group.lr_multiplier), group.runs, gradient, state, weights);
}

}  // namespace so
