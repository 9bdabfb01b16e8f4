#include "cli/guard.h"

#include <exception>
#include <new>

#include "base/error.h"
#include "train/commands.h"

namespace so {

int run_guarded(const std::function<int()>& body, std::string& message) {
  try {
    return body();
  } catch (const Error& error) {
    message = std::string("superoffload: ") + error.what();
    return exit_user_error;
  } catch (const Bug& bug) {
    message = std::string("superoffload: internal error, please report it: ") + bug.what();
    return exit_internal_error;
  } catch (const std::bad_alloc&) {
    message = "superoffload: out of memory";
    return exit_failure;
  } catch (const std::exception& error) {
    message = std::string("superoffload: ") + error.what();
    return exit_failure;
  }
}

}  // namespace so
