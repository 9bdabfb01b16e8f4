// The device under test (support/device_rig.h), with one stream and its ops.
#pragma once

#include <memory>

#include "ops/ops.h"
#include "support/device_rig.h"

namespace so::test {

class Rig : public DeviceRig {
 public:
  explicit Rig(int threads = 2) : DeviceRig(threads), ops_(make_ops(device())) {}

  Ops& ops() { return *ops_; }

 private:
  std::unique_ptr<Ops> ops_;
};

}  // namespace so::test
