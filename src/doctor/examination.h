// superoffload doctor: looks at a machine and says what is right, what costs how much, and how to mend it. Reads only.
#pragma once

#include "doctor/finding.h"
#include "doctor/gpu_driver.h"
#include "doctor/gpu_findings.h"
#include "doctor/machine_files.h"

namespace so {

// All findings, in the order in which they are shown. The machine is given, so that tests can make one.
Findings examine(const MachineFiles& files, const GpuDriver& driver, const Software& software);

// Finds the software of this machine that this program works with. Loads the libraries that it asks for their versions.
Software software_of_this_machine();

}  // namespace so
