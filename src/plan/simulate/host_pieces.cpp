#include "plan/simulate/host_pieces.h"

#include <algorithm>

namespace so {
namespace {

constexpr std::int64_t most_pieces = 192;  // of all that the host owns, and one a unit more: finer says nothing new

std::vector<Bucket> make_pieces(const SimulatedRun& run) {
  std::int64_t begin = 0, owned = 0;
  for (std::size_t u = 0; u < run.units.size(); ++u)
    (run.placement.on_host(static_cast<int>(u)) ? owned : begin) += run.units[u].elements;
  const std::int64_t target = std::max({std::int64_t{1}, run.placement.bucket_elements, owned / most_pieces});
  std::vector<Bucket> pieces;
  for (std::size_t u = 0; u < run.units.size(); ++u) {
    if (!run.placement.on_host(static_cast<int>(u))) continue;
    const std::int64_t elements = run.units[u].elements, count = (elements + target - 1) / target;
    for (std::int64_t i = 0; i < count; ++i)
      pieces.emplace_back(static_cast<int>(pieces.size()),
                          Range{begin + elements * i / count, begin + elements * (i + 1) / count}, Owner::host);
    begin += elements;
  }
  return pieces;
}

}  // namespace

HostPieces::HostPieces(const SimulatedRun& run) : pieces_(make_pieces(run)) {
  std::size_t piece = 0;
  for (std::size_t u = 0; u < run.units.size(); ++u) {
    first_of_.push_back(static_cast<int>(piece));
    std::int64_t left = run.placement.on_host(static_cast<int>(u)) ? run.units[u].elements : 0;
    while (left > 0) left -= pieces_[piece++].range().size();
    while (unit_of_.size() < piece) unit_of_.push_back(static_cast<int>(u));
  }
  first_of_.push_back(static_cast<int>(piece));
}

std::int64_t HostPieces::largest() const {
  std::int64_t largest = 1;
  for (const Bucket& b : pieces_) largest = std::max(largest, b.range().size());
  return largest;
}

}  // namespace so
