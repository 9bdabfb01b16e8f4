// How a value that is computed meets what lies where it is written.
#pragma once

namespace so {

enum class Accumulate : bool { overwrite = false, add = true };

}  // namespace so
