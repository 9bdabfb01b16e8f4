// Recording a GPU's own activities. device/cuda implements it through CUPTI, device/no_cuda does nothing.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "device/trace.h"

namespace so {

class GpuTrace {
 public:
  virtual ~GpuTrace() = default;
  // Ends recording. Calls `add` for every activity, with times as trace_now() gives them (TraceActivity::track is not
  // set) and the name of its stream. Adds to `remarks` what was lost.
  using Add = std::function<void(const std::string& stream, TraceActivity activity)>;
  virtual void stop(const Add& add, std::vector<std::string>& remarks) = 0;
};

// Null, with the reason in `remark`, if GPU activities cannot be recorded.
std::unique_ptr<GpuTrace> start_gpu_trace(std::string& remark);

}  // namespace so
