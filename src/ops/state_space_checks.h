// Argument checks of state spaces and their gates, shared by the backends: Bug with the op, the argument and both
// shapes.
#pragma once

#include "ops/ops.h"

namespace so {

void expect_step_gates(const char* op, const Ops::StepGates& g);
void expect_step_gates_grad(const char* op, const Ops::StepGatesGrad& g);
StateSpaceSize expect_state_space(const char* op, const Ops::StateSpace& s);
StateSpaceSize expect_state_space_grad(const char* op, const Ops::StateSpaceGrad& g);

}  // namespace so
