#include "base/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/cpus.h"
#include "base/delay_point.h"
#include "base/error.h"

namespace so {
namespace {

std::int64_t pieces_of(std::int64_t count, std::int64_t grain) { return count <= 0 ? 0 : (count - 1) / grain + 1; }

void run_piece(const ParallelWork& work, std::int64_t piece) {
  const std::int64_t begin = piece * work.grain;
  work.body(begin, std::min(work.count, begin + work.grain));
}

void pin(pthread_t thread, int cpu) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(cpu, &mask);
  pthread_setaffinity_np(thread, sizeof mask, &mask);  // best effort: a refusal costs speed only
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

// The first error of several threads.
class FirstError {
 public:
  void keep(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  std::exception_ptr take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(error_, nullptr);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

ParallelWork all_of(std::vector<ParallelWork> parts) {
  std::erase_if(parts, [](const ParallelWork& part) { return part.count <= 0; });
  if (parts.empty()) return {};
  if (parts.size() == 1) return std::move(parts.front());
  std::vector<std::int64_t> ends;
  for (const ParallelWork& part : parts)
    ends.push_back((ends.empty() ? 0 : ends.back()) + pieces_of(part.count, part.grain));
  const std::int64_t pieces = ends.back();
  return {pieces, 1, [parts = std::move(parts), ends = std::move(ends)](std::int64_t piece, std::int64_t) {
            const auto part = std::upper_bound(ends.begin(), ends.end(), piece) - ends.begin();
            run_piece(parts[static_cast<std::size_t>(part)], piece - (part == 0 ? 0 : *(ends.begin() + part - 1)));
          }};
}

// Room for one job after another. A thread may come here for a piece of a job that is over: then it gets none, or one
// of the job that has the slot now. Whether it got one, `left` alone tells, so that it reads the rest only while that
// job cannot end.
struct ThreadPool::Slot {
  alignas(64) std::atomic<std::int64_t> left{0};     // pieces that nobody has taken; none if it is not positive
  alignas(64) std::atomic<std::int64_t> unended{0};  // pieces that have not ended
  // Written while no thread can have a piece, before `left` is.
  alignas(64) ParallelWork work;
  std::int64_t pieces = 0;
  FirstError error;
  std::atomic<bool> taken{false};  // by a job that has not been finished
};

// Jobs are numbered. Those from `oldest` to `next` stand in line and may have pieces left; of job i, slots[i % length]
// is the slot. If that job is finished and a later one uses its slot, the later one's pieces are taken early, which
// does no harm.
struct ThreadPool::Line {
  static constexpr std::size_t length = 1024;
  alignas(64) std::atomic<std::uint64_t> oldest{0};
  alignas(64) std::atomic<std::uint64_t> next{0};
  std::array<std::atomic<Slot*>, length> slots{};
  std::mutex beginning;  // held by a thread that lines its job up

  bool empty() const { return oldest.load() == next.load(); }
};

struct ThreadPool::State {
  Line before, line;  // the jobs that go before others, and the others
  std::atomic<bool> stop{false};
  Bell started, ended;
  std::array<Slot, most_jobs> slots;

  std::vector<int> cpus;
  bool pinned = false;
  std::chrono::microseconds spin{0};
  std::vector<std::thread> threads;

  // Waits until `reached()`, first spinning, then asleep on `bell`, which rings after it has become true.
  template <class Reached>
  void wait(Bell& bell, Reached reached) {
    if (spin.count() > 0 && !reached()) {
      const auto end = std::chrono::steady_clock::now() + spin;
      do {
        for (int i = 0; i < 32 && !reached(); ++i) relax();
        if (!reached()) std::this_thread::yield();  // whom this thread waits for may want the same CPU
      } while (!reached() && std::chrono::steady_clock::now() < end);
    }
    while (!reached()) {
      const std::uint32_t rings = bell.count();
      if (reached()) break;
      bell.sleep(rings);
    }
  }

  bool take_from(Slot& slot) {
    if (slot.left.load(std::memory_order_relaxed) <= 0) return false;
    const std::int64_t left = slot.left.fetch_sub(1, std::memory_order_acq_rel);
    if (left <= 0) return false;
    std::int64_t count = 1;  // that end with this one
    try {
      delay_point();
      run_piece(slot.work, slot.pieces - left);
      delay_point();
    } catch (...) {
      slot.error.keep(std::current_exception());
      count += std::max<std::int64_t>(slot.left.exchange(0), 0);
    }
    if (slot.unended.fetch_sub(count) == count) ended.ring();  // from here on the slot is another's
    return true;
  }

  bool take_from(Line& jobs) {
    for (;;) {
      std::uint64_t job = jobs.oldest.load();
      if (job == jobs.next.load()) return false;
      if (take_from(*jobs.slots[job % Line::length].load())) return true;
      jobs.oldest.compare_exchange_strong(job, job + 1);  // or another thread has
    }
  }

  bool take_part() { return take_from(before) || take_from(line); }

  Slot* take_slot() {
    for (Slot& slot : slots)
      if (!slot.taken.load(std::memory_order_relaxed) && !slot.taken.exchange(true)) return &slot;
    return nullptr;
  }

  Slot& begin(ParallelWork work, Line& jobs) {
    Slot* slot = take_slot();
    while (slot == nullptr) {
      wait(ended, [&] { return std::any_of(slots.begin(), slots.end(), [](const Slot& s) { return !s.taken; }); });
      slot = take_slot();
    }
    slot->work = std::move(work);
    slot->pieces = pieces_of(slot->work.count, slot->work.grain);
    slot->unended = slot->pieces;
    slot->left.store(slot->pieces, std::memory_order_release);

    const std::lock_guard lock(jobs.beginning);
    const std::uint64_t job = jobs.next.load();
    while (job - jobs.oldest.load() == Line::length) take_from(jobs);  // until the first in line has no piece left
    jobs.slots[job % Line::length] = slot;
    jobs.next = job + 1;
    started.ring();
    return *slot;
  }

  // Returns its error.
  std::exception_ptr finish(Slot& slot) {
    while (take_from(slot)) {
    }
    wait(ended, [&] { return slot.unended.load() == 0; });
    // A later job that has this slot is not to be taken for the one that went before others.
    for (std::uint64_t job = before.oldest.load(); job != before.next.load(); job = before.oldest.load()) {
      if (before.slots[job % Line::length].load()->left.load() > 0) break;
      before.oldest.compare_exchange_strong(job, job + 1);
    }
    std::exception_ptr error = slot.error.take();
    slot.work.body = nullptr;
    slot.taken = false;
    ended.ring();
    return error;
  }

  void work() {
    for (;;) {
      wait(started, [&] { return stop.load() || !before.empty() || !line.empty(); });
      if (stop) return;
      take_part();
    }
  }

  void end_threads() {
    stop = true;
    started.ring();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
};

ThreadPool::ThreadPool(std::string name, std::vector<int> cpus, bool pinned, std::chrono::microseconds spin)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.cpus = std::move(cpus);
  state.pinned = pinned;
  if (state.cpus.size() <= count_usable_cpus()) state.spin = spin;
  state.threads.reserve(state.cpus.size());
  try {
    for (std::size_t i = 1; i < state.cpus.size(); ++i) {
      std::thread& thread = state.threads.emplace_back([&state] { state.work(); });
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
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return;
  for (const int cpu : state_->cpus) CPU_CLR(cpu, &mask);
  if (CPU_COUNT(&mask) > 0) pthread_setaffinity_np(pthread_self(), sizeof mask, &mask);  // best effort, as pin()
}

void ThreadPool::parallel_for(std::int64_t count, std::int64_t grain,
                              const std::function<void(std::int64_t, std::int64_t)>& body) {
  SO_CHECK(grain > 0, "grain {}", grain);
  if (count <= 0) return;
  if (count <= grain || state_->threads.empty()) {
    for (std::int64_t begin = 0; begin < count; begin += grain) body(begin, std::min(count, begin + grain));
    return;
  }
  finish(begin({count, grain, [&body](std::int64_t from, std::int64_t to) { body(from, to); }}));
}

ThreadPool::Job ThreadPool::begin(ParallelWork work, Line& jobs) {
  SO_CHECK(work.grain > 0, "grain {}", work.grain);
  Job job;
  if (work.count <= 0) return job;
  job.pool_ = this;
  job.slot_ = &state_->begin(std::move(work), jobs);
  return job;
}

ThreadPool::Job ThreadPool::begin(ParallelWork work) { return begin(std::move(work), state_->line); }

ThreadPool::Job ThreadPool::begin_before_others(ParallelWork work) { return begin(std::move(work), state_->before); }

bool ThreadPool::take_part() { return state_->take_part(); }

void ThreadPool::finish(Job job) {
  if (job.slot_ == nullptr) return;
  if (const std::exception_ptr error = state_->finish(*std::exchange(job.slot_, nullptr)))
    std::rethrow_exception(error);
}

void ThreadPool::finish_in_line(Job job) {
  while (!job.done() && take_part()) {
  }
  finish(std::move(job));
}

ThreadPool::Job::Job(Job&& other) noexcept : pool_(other.pool_), slot_(std::exchange(other.slot_, nullptr)) {}

ThreadPool::Job& ThreadPool::Job::operator=(Job&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(slot_, other.slot_);
  return *this;
}

ThreadPool::Job::~Job() {
  if (slot_ != nullptr) pool_->state_->finish(*slot_);
}

bool ThreadPool::Job::done() const { return slot_ == nullptr || slot_->unended.load() == 0; }

}  // namespace so
