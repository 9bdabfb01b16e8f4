// A pool of threads over an explicit list of CPUs.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace so {

// Work that threads may share: body(begin, end) over [0, count), cut in pieces of `grain` (the last may be shorter).
// It is cut by index only, never by timing, so what each index computes does not depend on the number of threads;
// results that depend on it would be a bug of the body.
struct ParallelWork {
  std::int64_t count = 0, grain = 1;
  std::function<void(std::int64_t begin, std::int64_t end)> body;
};
// All pieces of all parts, as one.
ParallelWork all_of(std::vector<ParallelWork> parts);

// Runs jobs, which any thread may give it, also several at once. Its threads take pieces of the job that began first
// and has one left, so where the next has begun in time, none of them waits between two; jobs that go before others are
// a line of their own. The thread that gives a job takes part in it, so a pool of n has n-1 threads of its own. A body
// must not use its pool.
class ThreadPool {
  struct Slot;
  struct Line;
  struct State;

 public:
  // How long to spin where nobody else wants the CPUs: longer than the way from one job to the next takes, far shorter
  // than the job.
  static constexpr std::chrono::microseconds long_spin{100}, no_spin{0};

  // One worker a CPU; workers are pinned when `pinned`. An empty list means one thread: the caller.
  // `name` is what debuggers and profilers show. For `spin` idle workers watch for the next job, and a caller for the
  // end of its own, before they sleep; waking a sleeper takes tens of microseconds. None by default: spinning takes the
  // CPU from other threads, such as another pool's. A pool with more workers than this process has CPUs never spins.
  ThreadPool(std::string name, std::vector<int> cpus, bool pinned, std::chrono::microseconds spin = no_spin);
  // All jobs have ended, and no other thread is in a call.
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

  // Runs the pieces of the work. Returns when all are done. The first exception a piece throws is rethrown here, after
  // all pieces that had begun have ended; the others are not run.
  void run(const ParallelWork& work) { parallel_for(work.count, work.grain, work.body); }
  void parallel_for(std::int64_t count, std::int64_t grain,
                    const std::function<void(std::int64_t, std::int64_t)>& body);

  // A job under way. It belongs to the thread that began it. Where it is destroyed before finish(), that waits for it,
  // and its error is dropped.
  class Job {
   public:
    Job() = default;  // done
    Job(Job&& other) noexcept;
    Job& operator=(Job&& other) noexcept;
    ~Job();
    bool done() const;  // all pieces have ended

   private:
    friend ThreadPool;
    ThreadPool* pool_ = nullptr;
    Slot* slot_ = nullptr;  // null: there was nothing to do, or it has been finished
  };
  // Begins a job and returns while the pool's threads work on it. While `most_jobs` are unfinished this waits: threads
  // that begin a job and have others unfinished must together have fewer of them, or they may wait for each other.
  // Behind a thousand jobs, the first of which is long, it takes part in that one.
  static constexpr std::size_t most_jobs = 16;
  Job begin(ParallelWork work);
  // The same, before all jobs that did not begin so: the pool's threads and take_part() turn to these when this has no
  // piece left, and finish() of one of these when that has none. For short work that something waits for.
  Job begin_before_others(ParallelWork work);
  // Runs one piece of the job whose turn it is. Returns false if none has. What the piece throws is its job's.
  bool take_part();
  // Takes part in this job until it is done. Throws as run() does.
  void finish(Job job);
  // The same, and takes part in other jobs where this one has no piece left: for a thread that has begun the next.
  void finish_in_line(Job job);

 private:
  Job begin(ParallelWork work, Line& jobs);

  std::unique_ptr<State> state_;
};

}  // namespace so
