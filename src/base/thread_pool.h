// A pool of threads over an explicit list of CPUs.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace so {

// The cores this process may run on (its affinity mask), each as the operating-system indices of its hardware threads
// that are in the mask. From hwloc. At least one core, none of them empty.
std::vector<std::vector<int>> usable_cores();

// The CPUs of usable_cores(), one hardware thread per core first, then their siblings.
std::vector<int> usable_cpus();

// CPUs for `threads` workers beside a thread that feeds a GPU, or with 0 for as many as leave that thread a core: one
// hardware thread per core first, then their siblings, and the first of `cores` last. With fewer than 4 cores none is
// left, and the first keeps its place. Never more than there are.
std::vector<int> host_worker_cpus(std::span<const std::vector<int>> cores, int threads);

// Fork-join parallelism. parallel_for may be called from any thread, also from several at once (the calls take turns);
// it must not be called from inside its own body. The caller takes part in the work, so a pool of n has n-1 threads
// of its own. Work is cut by index only, never by timing, so what each index computes does not depend on the number
// of threads; results that depend on it would be a bug of the caller.
class ThreadPool {
 public:
  // How long to spin where nobody else wants the CPUs: longer than the way from one job to the next takes, far shorter
  // than the job.
  static constexpr std::chrono::microseconds long_spin{100}, no_spin{0};

  // One worker a CPU; workers are pinned when `pinned`. An empty list means one thread: the caller.
  // `name` is what debuggers and profilers show. For `spin` idle workers watch for the next job, and a caller for the
  // end of its own, before they sleep; waking a sleeper takes tens of microseconds. None by default: spinning takes the
  // CPU from other threads, such as another pool's. A pool with more workers than this process has CPUs never spins.
  ThreadPool(std::string name, std::vector<int> cpus, bool pinned, std::chrono::microseconds spin = no_spin);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;  // threads that work, the caller included

  // Pins the calling thread to the CPU of worker 0, which the caller of a job is. For a thread that does little else.
  // Nothing in a pool that is not pinned.
  void pin_caller() const;
  // Keeps the calling thread off the CPUs of a pinned pool's threads, if it may use any others: a thread that has one
  // of them for a moment holds up a job, which is not done before its last piece is.
  void keep_caller_off() const;

  // Runs body(begin, end) over [0, count) cut in pieces of `grain` (the last may be shorter). Returns when all are
  // done. The first exception a piece throws is rethrown here, after all pieces that had begun have ended; the others
  // are not run.
  // `meanwhile`: what the caller does before it takes part, while the others have begun. It is small beside the job,
  // does not use the pool, and whatever it throws counts as a piece's exception.
  void parallel_for(std::int64_t count, std::int64_t grain, const std::function<void(std::int64_t, std::int64_t)>& body,
                    const std::function<void()>& meanwhile = {});

  // Runs body(worker) once for each worker in [0, size()), worker w always on the same thread (0 is the caller).
  // For first touch of memory and per-worker ranges.
  void for_each_worker(const std::function<void(int)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace so
