// Runs a test body once for each instruction set that this machine has and the build made code for; on a GPU, once.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstdint>
#include <functional>

#include "support/on_gpu.h"

namespace so::test {

// No op may be under way on another thread.
inline void for_each_instruction_set(const std::function<void()>& body) {
  if (on_gpu()) return body();
  struct Restore {
    ~Restore() {
      hwy::SetSupportedTargetsForTest(0);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    }
  } restore;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
  }
}

}  // namespace so::test
