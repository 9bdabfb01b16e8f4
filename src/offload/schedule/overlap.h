// How well a step's work on the device and AdamW on the host hide each other, and what keeps them from it: of steps
// that were measured or simulated, in the same terms.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "offload/schedule/host_time.h"
#include "offload/schedule/wait_reason.h"

namespace so {

struct StepOverlap {
  double seconds = 0;         // of the step, or of several together
  WaitSeconds device_idle{};  // of it; in the rest the device works
  HostSeconds host{};         // which add up to the step; all 0: no optimizer state is the host's

  bool has_host() const;
  double device_work() const;  // seconds; the measured waits may exceed a step by rounding, so at least 0
  double host_adamw() const { return host[static_cast<std::size_t>(HostTime::adamw)]; }
  // The longer of the two works as a share of the step: 1 if the longer one never stops. 0 of no step.
  double efficiency() const;

  StepOverlap& operator+=(const StepOverlap& other);
};

// Every part of `overlap` by a name, for records: the device's "work" and what it waits for; what the host does.
using NamedParts = std::vector<std::pair<std::string, double>>;
NamedParts device_parts(const StepOverlap& overlap);
NamedParts host_parts(const StepOverlap& overlap);  // empty without a host's part

// For people, as seconds of one of `steps` steps: work, and what was waited for, the longest first. "device: work
// 1.9551 s, idle 0.1449: waiting for AdamW on the host 0.1200, transfers 0.0249; host: AdamW 1.2000 s, ..."
std::string describe(const StepOverlap& overlap, double steps = 1);

}  // namespace so
