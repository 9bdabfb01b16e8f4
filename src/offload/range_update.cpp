#include "offload/range_update.h"

#include <algorithm>
#include <vector>

namespace so {

void update_range(DeviceAdamW& adamw, Stream& stream, const AdamWSteps& steps, const ParameterLayout& layout,
                  Range range, Tensor gradient, AdamWState state, Tensor weights) {
  if (range.size() == 0) return;
  struct Group {
    const AdamWStep* step;
    std::vector<AdamWRun> runs;
  };
  std::vector<Group> groups;  // a few
  for (const AdamWSteps::Run& run : steps.runs(layout, range)) {
    if (run.step == nullptr) continue;
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const Group& other) { return *other.step == *run.step; });
    if (group == groups.end()) group = groups.insert(group, {run.step, {}});
    group->runs.push_back({run.range.begin - range.begin, run.range.end - range.begin, run.decay,
                           layout.blocks({range.begin, run.range.begin})});
  }
  for (const Group& group : groups) adamw.update(stream, *group.step, group.runs, gradient, state, weights);
}

}  // namespace so
