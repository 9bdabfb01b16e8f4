// Places for new state beside the old.
#pragma once

#include "offload/schedule/bucket.h"

namespace so {

class StatePlaces {
 public:
  virtual ~StatePlaces() = default;
  virtual bool has_spare() const = 0;
  virtual int take_spare() = 0;           // Bug if there is none
  virtual void give_back(int place) = 0;  // what was written there is forgotten
  // The new state becomes the bucket's; where the old one was is spare.
  virtual void adopt(int place, const Bucket& bucket) = 0;
};

}  // namespace so
