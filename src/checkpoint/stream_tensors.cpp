#include "checkpoint/stream_tensors.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/progress.h"
#include "base/quantities.h"
#include "device/wait_on_exit.h"

namespace so {

std::vector<ShardReader::Request> requests_within(std::span<const Range> ranges,
                                                  std::vector<ShardReader::Request> requests) {
  std::vector<ShardReader::Request> parts;
  for (ShardReader::Request& request : requests) {
    if (!request.scales.empty()) {
      parts.push_back(std::move(request));
      continue;
    }
    const TensorInfo& info = request.info();
    const Range tensor{request.at, request.at + static_cast<std::int64_t>(info.bytes() / size_of(info.dtype))};
    auto range = std::partition_point(ranges.begin(), ranges.end(),
                                      [&](const Range& before) { return before.end <= tensor.begin; });
    for (; range != ranges.end() && range->begin < tensor.end; ++range) {
      const Range part = common(*range, tensor);
      ShardReader::Request one = request;
      one.first = part.begin - tensor.begin;
      one.last = part.end - tensor.begin;
      parts.push_back(std::move(one));
    }
  }
  return parts;
}

void stream_tensors(LoadingRing& ring, Stream& stream, std::vector<ShardReader::Request> requests, int readers,
                    PageCache cache, NonFinite non_finite, const std::string& what,
                    const std::function<void(const WeightPiece&)>& place) {
  std::set<const SafetensorsReader*> files;
  for (const ShardReader::Request& request : requests) {
    files.insert(request.file);
    if (request.scales_file != nullptr) files.insert(request.scales_file);
  }
  // Whatever happens, the ring's memory goes only when no copy uses it.
  const WaitOnExit idle(stream);
  const auto start = std::chrono::steady_clock::now();
  ShardReader reader(ring, std::move(requests), readers, cache, non_finite);
  ProgressReport progress(what);
  const std::string size = format_bytes(reader.total_bytes());
  while (const auto piece = reader.next()) {
    place(*piece);
    reader.release(stream);
    progress.update(static_cast<double>(reader.bytes_given()) / static_cast<double>(reader.total_bytes()), size);
  }
  stream.synchronize();
  // Drops also the pages at the edges of pieces, which the pieces' own dropping leaves.
  if (cache == PageCache::drop)
    for (const SafetensorsReader* file : files) file->drop_cache();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  log_detail("{}: {} bytes, {:.4f} s", what, reader.total_bytes(), took.count());
}

}  // namespace so
