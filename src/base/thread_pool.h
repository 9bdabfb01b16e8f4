// A pool of threads over an explicit list of CPUs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace so {

// The CPUs this process may run on (its affinity mask), one hardware thread per core first, then their siblings,
// as operating-system indices. From hwloc.
std::vector<int> usable_cpus();

// Fork-join parallelism. parallel_for may be called from any thread, also from several at once (the calls take turns);
// it must not be called from inside its own body. The caller takes part in the work, so a pool of n has n-1 threads
// of its own. Work is cut by index only, never by timing, so what each index computes does not depend on the number
// of threads; results that depend on it would be a bug of the caller.
class ThreadPool {
 public:
  // One worker a CPU; workers are pinned when `pin`. An empty list means one thread: the caller.
  // `name` is what debuggers and profilers show.
  ThreadPool(std::string name, std::vector<int> cpus, bool pin);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;  // threads that work, the caller included

  // Runs body(begin, end) over [0, count) cut in pieces of `grain` (the last may be shorter). Returns when all are
  // done. The first exception a piece throws is rethrown here, after all pieces have ended.
  void parallel_for(std::int64_t count, std::int64_t grain,
                    const std::function<void(std::int64_t, std::int64_t)>& body);

  // Runs body(worker) once for each worker in [0, size()), worker w always on the same thread (0 is the caller).
  // For first touch of memory and per-worker ranges.
  void for_each_worker(const std::function<void(int)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace so
