// The weights of frozen parameters as checkpoints and exports meet them. They have no optimizer state: their unit's
// residency alone keeps them, on the device or in host memory, and nothing changes them once they are loaded.
#pragma once

#include <memory>
#include <span>

#include "offload/memory/state_transfer.h"
#include "offload/memory/unit_weights.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

class FrozenWeights {
 public:
  // Takes memory only if a parameter is frozen. `weights` must outlive this, and no unit with a frozen parameter has
  // weights that are made of masters.
  FrozenWeights(Device& device, const ParameterLayout& layout, std::span<const Bucket> buckets,
                const UnitWeights& weights);

  // Read or write elements `part` of a frozen bucket, in this rank's slice and in one unit, as fp32: bf16 is widened
  // when read, rounded when written. Safe beside the model's work, which only reads them. The caller must have waited
  // for their loading, and must refresh copies of what it writes.
  void read(Range part, const ReadPiece& body);
  void write(Range part, const WritePiece& fill);

 private:
  // Where they are kept, and whether that is in host memory.
  struct Place {
    Tensor weights;
    bool on_host = false;
  };
  Place place_of(Range part) const;

  const UnitWeights& weights_;
  std::unique_ptr<StateTransfer> transfer_;  // null if nothing is frozen
  std::unique_ptr<Event> loaded_;            // never recorded: nothing is waited for
};

}  // namespace so
