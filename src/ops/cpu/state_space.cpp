// State spaces and the gates around them: declared, and refused until they are here.
#include "base/error.h"
#include "ops/cpu/cpu_ops.h"

namespace so {

void CpuOps::gate_then_norm(Stream&, Heads, Heads, Heads, HeadNorm) { SO_BUG("gate_then_norm is not here yet"); }
void CpuOps::gate_then_norm_grad(Stream&, const GateThenNormGrad&) { SO_BUG("gate_then_norm_grad is not here yet"); }
void CpuOps::step_gates(Stream&, const StepGates&) { SO_BUG("step_gates is not here yet"); }
void CpuOps::step_gates_grad(Stream&, const StepGatesGrad&) { SO_BUG("step_gates_grad is not here yet"); }
void CpuOps::state_space(Stream&, const StateSpace&) { SO_BUG("state_space is not here yet"); }
void CpuOps::state_space_grad(Stream&, const StateSpaceGrad&) { SO_BUG("state_space_grad is not here yet"); }

}  // namespace so
