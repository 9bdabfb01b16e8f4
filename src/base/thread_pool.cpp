#include "base/thread_pool.h"

#include <hwloc.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/delay_point.h"
#include "base/error.h"

namespace so {

namespace {

// Returns the CPUs that the calling thread may use; none if the system does not say.
cpu_set_t own_cpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) CPU_ZERO(&mask);
  return mask;
}

}  // namespace

std::vector<std::vector<int>> usable_cores() {
  const cpu_set_t mask = own_cpus();
  if (CPU_COUNT(&mask) == 0) return {{0}};
  std::vector<std::vector<int>> cores;
  hwloc_topology_t topology;
  hwloc_topology_init(&topology);
  hwloc_topology_load(topology);
  for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr;) {
    std::vector<int> cpus;
    for (int cpu = hwloc_bitmap_first(core->cpuset); cpu >= 0; cpu = hwloc_bitmap_next(core->cpuset, cpu))
      if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
    if (!cpus.empty()) cores.push_back(std::move(cpus));
  }
  hwloc_topology_destroy(topology);
  if (cores.empty()) {  // a machine whose cores hwloc cannot see
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &mask)) cores.push_back({cpu});
  }
  return cores;
}

namespace {

// One hardware thread per core, then their siblings.
std::vector<int> by_core(std::span<const std::vector<int>> cores) {
  std::vector<int> first, siblings;
  for (const std::vector<int>& core : cores) {
    first.push_back(core.front());
    siblings.insert(siblings.end(), core.begin() + 1, core.end());
  }
  first.insert(first.end(), siblings.begin(), siblings.end());
  return first;
}

constexpr std::size_t cores_to_spare_one = 4;  // with fewer, a core is too large a part of the whole

}  // namespace

std::vector<int> usable_cpus() { return by_core(usable_cores()); }

std::vector<int> host_worker_cpus(std::span<const std::vector<int>> cores, int threads) {
  SO_CHECK(!cores.empty() && threads >= 0, "{} threads on {} cores", threads, cores.size());
  if (cores.size() < cores_to_spare_one) {
    std::vector<int> cpus = by_core(cores);
    if (threads > 0) cpus.resize(std::min(cpus.size(), static_cast<std::size_t>(threads)));
    return cpus;
  }
  std::vector<int> cpus = by_core(cores.subspan(1));
  if (threads == 0) return cpus;
  cpus.insert(cpus.end(), cores[0].begin(), cores[0].end());
  cpus.resize(std::min(cpus.size(), static_cast<std::size_t>(threads)));
  return cpus;
}

namespace {

void pin(pthread_t thread, int cpu) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(cpu, &mask);
  pthread_setaffinity_np(thread, sizeof mask, &mask);  // best effort: a refusal costs speed only
}

std::size_t count_usable_cpus() {
  const cpu_set_t mask = own_cpus();
  return static_cast<std::size_t>(std::max(1, CPU_COUNT(&mask)));
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Something that threads sleep on until it rings. Not a condition variable, whose sleepers leave one by one through its
// mutex. Usage: take count(), look whether there is reason to sleep, sleep(the count). A ring after count() ends it.
class Bell {
 public:
  std::uint32_t count() const { return rings_.load(); }
  void sleep(std::uint32_t count) {
    sleepers_.fetch_add(1);
    syscall(SYS_futex, &rings_, FUTEX_WAIT_PRIVATE, count, nullptr, nullptr, 0);  // may also end for no reason
    sleepers_.fetch_sub(1);
  }
  void ring() {
    rings_.fetch_add(1);
    if (sleepers_.load() > 0) syscall(SYS_futex, &rings_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }

 private:
  std::atomic<std::uint32_t> rings_{0};
  std::atomic<int> sleepers_{0};
};
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
              std::atomic<std::uint32_t>::is_always_lock_free);

// All workers watch this one word, so that joining a job and its end exclude each other: how many are in the job,
// flags, and the number of the job.
constexpr std::uint64_t worker_unit = 1, workers_mask = 0xffff;
constexpr std::uint64_t open_flag = 0x10000;      // workers may still join
constexpr std::uint64_t everyone_flag = 0x20000;  // all have been counted in from the start
constexpr std::uint64_t stop_flag = 0x40000;      // no more jobs
constexpr std::uint64_t job_unit = 0x80000;

std::uint64_t job_of(std::uint64_t word) { return word / job_unit; }

}  // namespace

struct ThreadPool::State {
  std::mutex turn;  // held by the caller for the length of one job

  alignas(64) std::atomic<std::uint64_t> word{0};
  Bell started, ended;
  alignas(64) std::atomic<std::int64_t> next{0};  // the first index that nobody has taken

  // The current job; written before `word` names it, while no worker is in one.
  alignas(64) const std::function<void(std::int64_t, std::int64_t)>* body = nullptr;
  const std::function<void(int)>* worker_body = nullptr;
  const std::function<void()>* meanwhile = nullptr;  // the caller's; null: none
  std::int64_t count = 0, grain = 1;

  std::mutex error_mutex;
  std::exception_ptr error;  // the job's first; guarded by error_mutex

  std::vector<int> cpus;
  bool pinned = false;
  std::chrono::microseconds spin{0};
  std::vector<std::thread> threads;

  // Waits until `reached(word)`, first spinning, then asleep on `bell`, which rings after `word` has changed so.
  template <class Reached>
  std::uint64_t wait(Bell& bell, Reached reached) {
    std::uint64_t now = word.load();
    if (spin.count() > 0 && !reached(now)) {
      const auto end = std::chrono::steady_clock::now() + spin;
      do {
        for (int i = 0; i < 32 && !reached(now); ++i) {
          relax();
          now = word.load();
        }
        if (!reached(now)) std::this_thread::yield();  // whom this thread waits for may want the same CPU
      } while (!reached(now) && std::chrono::steady_clock::now() < end);
    }
    while (!reached(now)) {
      const std::uint32_t rings = bell.count();
      now = word.load();
      if (reached(now)) break;
      bell.sleep(rings);
      now = word.load();
    }
    return now;
  }

  void work(int worker) {
    try {
      delay_point();
      if (worker == 0 && meanwhile) (*meanwhile)();
      if (worker_body) (*worker_body)(worker);
      while (!worker_body) {
        const std::int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= count) break;
        (*body)(begin, std::min(count, begin + grain));
      }
      delay_point();
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
      std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  }

  void run(int worker) {
    for (std::uint64_t seen = 0;;) {
      std::uint64_t now = wait(started, [&](std::uint64_t w) { return (w & stop_flag) != 0 || job_of(w) != seen; });
      if ((now & stop_flag) != 0) return;
      if ((now & everyone_flag) == 0) {
        if ((now & open_flag) == 0) {  // it ended before this worker came, and did not wait for it
          seen = job_of(now);
          continue;
        }
        if (!word.compare_exchange_strong(now, now + worker_unit)) continue;  // others came or it ended: look again
      }
      seen = job_of(now);
      work(worker);
      const std::uint64_t left = word.fetch_sub(worker_unit) - worker_unit;
      if ((left & (workers_mask | open_flag)) == 0) ended.ring();
    }
  }

  void end_threads() {
    word.fetch_or(stop_flag);
    started.ring();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }

  // The job's fields are set, `turn` is held.
  void launch_and_wait() {
    const std::uint64_t job = job_of(word.load()) + 1;
    const std::uint64_t flags = worker_body ? everyone_flag | threads.size() : open_flag;
    error = nullptr;
    next.store(0, std::memory_order_relaxed);
    word.store(job * job_unit | flags);
    started.ring();
    work(0);
    word.fetch_and(~open_flag);
    wait(ended, [](std::uint64_t w) { return (w & workers_mask) == 0; });
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
  }
};

ThreadPool::ThreadPool(std::string name, std::vector<int> cpus, bool pinned, std::chrono::microseconds spin)
    : state_(std::make_unique<State>()) {
  SO_CHECK(cpus.size() <= workers_mask, "{} workers", cpus.size());
  State& state = *state_;
  state.cpus = std::move(cpus);
  state.pinned = pinned;
  if (state.cpus.size() <= count_usable_cpus()) state.spin = spin;
  state.threads.reserve(state.cpus.size());
  try {
    for (std::size_t i = 1; i < state.cpus.size(); ++i) {
      std::thread& thread = state.threads.emplace_back([&state, i] { state.run(static_cast<int>(i)); });
      pthread_setname_np(thread.native_handle(), fmt::format("{:.10}-{}", name, i).c_str());
      if (pinned) pin(thread.native_handle(), state.cpus[i]);
    }
  } catch (...) {  // a limit on threads or memory; those that run have no destructor to end them
    state.end_threads();
    throw;
  }
}

ThreadPool::~ThreadPool() { state_->end_threads(); }

int ThreadPool::size() const { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::pin_caller() const {
  if (state_->pinned && !state_->cpus.empty()) pin(pthread_self(), state_->cpus[0]);
}

void ThreadPool::keep_caller_off() const {
  if (!state_->pinned) return;
  cpu_set_t mask = own_cpus();
  for (const int cpu : state_->cpus) CPU_CLR(cpu, &mask);
  if (CPU_COUNT(&mask) > 0) pthread_setaffinity_np(pthread_self(), sizeof mask, &mask);  // best effort, as pin()
}

void ThreadPool::parallel_for(std::int64_t count, std::int64_t grain,
                              const std::function<void(std::int64_t, std::int64_t)>& body,
                              const std::function<void()>& meanwhile) {
  SO_CHECK(grain > 0, "grain {}", grain);
  if (count <= 0) return;
  if (count <= grain || state_->threads.empty()) {
    if (meanwhile) meanwhile();
    for (std::int64_t begin = 0; begin < count; begin += grain) body(begin, std::min(count, begin + grain));
    return;
  }
  std::lock_guard turn(state_->turn);
  state_->worker_body = nullptr;
  state_->body = &body;
  state_->meanwhile = meanwhile ? &meanwhile : nullptr;
  state_->count = count;
  state_->grain = grain;
  state_->launch_and_wait();
}

void ThreadPool::for_each_worker(const std::function<void(int)>& body) {
  std::lock_guard turn(state_->turn);
  state_->worker_body = &body;
  state_->meanwhile = nullptr;
  state_->launch_and_wait();
}

}  // namespace so
