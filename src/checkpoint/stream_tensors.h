// Tensors of files brought into place through a ring of pinned memory.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "io/shard_reader.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

// Returns the parts of the requests that lie in `ranges` of the flat range, which are in order. Quantised tensors are
// kept whole.
std::vector<ShardReader::Request> requests_within(std::span<const Range> ranges,
                                                  std::vector<ShardReader::Request> requests);

// place(piece) for each piece of the tensors, in order, while up to `readers` threads read ahead. What `place` enqueues
// on `stream` may use the piece's memory; all of it is done on return. Shows progress, as `what`, when it takes long,
// and logs as a detail how long it took. With PageCache::drop nothing of the files is left in the page cache. Throws
// Error naming file and tensor.
void stream_tensors(LoadingRing& ring, Stream& stream, std::vector<ShardReader::Request> requests, int readers,
                    PageCache cache, NonFinite non_finite, const std::string& what,
                    const std::function<void(const WeightPiece&)>& place);

}  // namespace so
