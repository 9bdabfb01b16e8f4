// Findings about the host: each function looks at one subject, and adds what it finds there.
#pragma once

#include "doctor/finding.h"
#include "doctor/machine_files.h"
#include "doctor/pci_gpu.h"
#include "doctor/processors.h"

namespace so {

// CPUs and clocks.
void find_cores(const MachineFiles& files, const Processors& machine, Findings& findings);
void find_cores_near_gpus(const Processors& machine, const std::vector<PciGpu>& gpus, Findings& findings);
void find_cpu_quota(const MachineFiles& files, const Processors& machine, Findings& findings);
void find_governor(const MachineFiles& files, const Processors& machine, Findings& findings);

// Memory.
void find_memory_nodes(const MachineFiles& files, const Processors& machine, Findings& findings);
void find_memory(const MachineFiles& files, Findings& findings);
void find_huge_pages(const MachineFiles& files, Findings& findings);
void find_process_limits(const MachineFiles& files, Findings& findings);

}  // namespace so
