// Says whether an operation replaces what is in its output or adds to it.
#pragma once

namespace so {

enum class Accumulate : bool { overwrite = false, add = true };

}  // namespace so
