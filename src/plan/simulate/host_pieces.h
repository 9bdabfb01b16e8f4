// The elements that the host owns in a simulated run (plan/simulate/simulator.h), cut into pieces that stand for the
// engine's buckets.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/schedule/bucket.h"
#include "plan/simulate/simulator.h"

namespace so {

// Pieces of about the same size, none of more than a bucket where there are few. A piece belongs to one unit.
class HostPieces {
 public:
  explicit HostPieces(const SimulatedRun& run);

  std::vector<Bucket>& all() { return pieces_; }
  std::size_t size() const { return pieces_.size(); }
  bool empty() const { return pieces_.empty(); }
  const Bucket& operator[](int piece) const { return pieces_[static_cast<std::size_t>(piece)]; }
  Bucket& operator[](int piece) { return pieces_[static_cast<std::size_t>(piece)]; }
  double elements(int piece) const { return static_cast<double>((*this)[piece].range().size()); }
  std::int64_t largest() const;  // elements; at least 1

  int unit_of(int piece) const { return unit_of_[static_cast<std::size_t>(piece)]; }
  // The unit's pieces are [first_of(unit), first_of(unit + 1)); none of one that the device owns.
  int first_of(int unit) const { return first_of_[static_cast<std::size_t>(unit)]; }
  std::span<Bucket> of(int unit) {
    return std::span(pieces_).subspan(static_cast<std::size_t>(first_of(unit)),
                                      static_cast<std::size_t>(first_of(unit + 1) - first_of(unit)));
  }
  // Whether `body` is true of all the unit's pieces, which are asked in order up to the first that is not.
  template <class Body>
  bool all_of(int unit, const Body& body) const {
    for (int piece = first_of(unit); piece < first_of(unit + 1); ++piece)
      if (!body(piece)) return false;
    return true;
  }
  const std::vector<int>& units() const { return unit_of_; }  // by piece

 private:
  std::vector<Bucket> pieces_;
  std::vector<int> first_of_, unit_of_;  // by unit, and one more; by piece
};

}  // namespace so
