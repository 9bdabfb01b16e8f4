// A run whose numbers have become useless.
#pragma once

#include <stdexcept>

namespace so {

// A run's state is not fit to be saved. Not an Error, since neither an option nor a file is wrong: exit_failure.
class Divergence : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace so
