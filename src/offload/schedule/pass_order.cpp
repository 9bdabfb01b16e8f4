#include "offload/schedule/pass_order.h"

namespace so {

void PassOrder::require(int unit) {
  if (in_use_++ > 0) return;
  // No backward pass leaps to the first unit, so a pass that went forward only begins anew.
  if (unit_ == none || unit > unit_ || (unit == 0 && unit_ > 1))
    step_ = 1;
  else if (unit < unit_)
    step_ = -1;
  unit_ = unit;
}

}  // namespace so
