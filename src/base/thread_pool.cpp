#include "base/thread_pool.h"

#include <hwloc.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"

namespace so {

std::vector<int> usable_cpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return {0};
  std::vector<int> first, siblings;
  hwloc_topology_t topology;
  hwloc_topology_init(&topology);
  hwloc_topology_load(topology);
  for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr;) {
    bool seen = false;
    for (int cpu = hwloc_bitmap_first(core->cpuset); cpu >= 0; cpu = hwloc_bitmap_next(core->cpuset, cpu)) {
      if (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &mask)) continue;
      (seen ? siblings : first).push_back(cpu);
      seen = true;
    }
  }
  hwloc_topology_destroy(topology);
  first.insert(first.end(), siblings.begin(), siblings.end());
  if (first.empty()) {  // a machine whose cores hwloc cannot see
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &mask)) first.push_back(cpu);
  }
  return first;
}

struct ThreadPool::State {
  std::mutex turn;  // held by the caller for the length of one parallel_for

  std::mutex mutex;
  std::condition_variable wake, done;
  std::uint64_t generation = 0;  // guarded by mutex; a new value is a new job
  bool stop = false;
  int running = 0;  // workers that have not finished the current job

  // The current job; written under mutex before generation changes, read by workers after they saw it change.
  const std::function<void(std::int64_t, std::int64_t)>* body = nullptr;
  const std::function<void(int)>* worker_body = nullptr;
  std::int64_t count = 0, grain = 1;
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error;  // guarded by mutex

  std::vector<std::thread> threads;

  void work(int worker) {
    try {
      if (worker_body) {
        (*worker_body)(worker);
        return;
      }
      for (;;) {
        const std::int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= count) return;
        (*body)(begin, std::min(count, begin + grain));
      }
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  }

  void run(int worker) {
    std::uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return stop || generation != seen; });
        if (stop) return;
        seen = generation;
      }
      work(worker);
      std::lock_guard lock(mutex);
      if (--running == 0) done.notify_one();
    }
  }

  void launch_and_wait() {  // the job's fields are set, `turn` is held
    {
      std::lock_guard lock(mutex);
      ++generation;
      running = static_cast<int>(threads.size());
      error = nullptr;
      next.store(0, std::memory_order_relaxed);
    }
    wake.notify_all();
    work(0);
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return running == 0; });
    if (error) std::rethrow_exception(error);
  }
};

ThreadPool::ThreadPool(std::string name, std::vector<int> cpus, bool pin) : state_(std::make_unique<State>()) {
  for (std::size_t i = 1; i < cpus.size(); ++i) {
    std::thread thread([state = state_.get(), i] { state->run(static_cast<int>(i)); });
    pthread_setname_np(thread.native_handle(), fmt::format("{:.10}-{}", name, i).c_str());
    if (pin) {
      cpu_set_t mask;
      CPU_ZERO(&mask);
      CPU_SET(cpus[i], &mask);
      pthread_setaffinity_np(thread.native_handle(), sizeof mask, &mask);  // best effort: a refusal costs speed only
    }
    state_->threads.push_back(std::move(thread));
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  for (auto& thread : state_->threads) thread.join();
}

int ThreadPool::size() const { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::parallel_for(std::int64_t count, std::int64_t grain,
                              const std::function<void(std::int64_t, std::int64_t)>& body) {
  SO_CHECK(grain > 0, "grain {}", grain);
  if (count <= 0) return;
  if (count <= grain || state_->threads.empty()) {
    for (std::int64_t begin = 0; begin < count; begin += grain) body(begin, std::min(count, begin + grain));
    return;
  }
  std::lock_guard turn(state_->turn);
  state_->worker_body = nullptr;
  state_->body = &body;
  state_->count = count;
  state_->grain = grain;
  state_->launch_and_wait();
}

void ThreadPool::for_each_worker(const std::function<void(int)>& body) {
  std::lock_guard turn(state_->turn);
  state_->worker_body = &body;
  state_->launch_and_wait();
}

}  // namespace so
