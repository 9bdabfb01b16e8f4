// The thread of HostOptimizer that has the device update buckets over the link.
#include <pthread.h>

#include "base/delay_point.h"
#include "offload/host_optimizer.h"
#include "offload/link_update.h"

namespace so {

bool HostOptimizer::next_over_link(LinkTask& task) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (stop_ || error_) return false;
    const int index = link_update_->full() ? -1 : schedule_.take(Updater::link);
    if (index >= 0) {
      Entry& e = entry(index);
      task = {.bucket = &bucket(index),
              .task = schedule_.begin(index),
              .place = schedule_.place_of(index),
              .complete = e.complete,
              .stored = gradients_.stored(bucket(index)),
              .fetched = &gradients_.fetched(bucket(index)),
              .current = e.current.get()};
      task.steps = task.task == HostTask::speculate || task.task == HostTask::preview ? unclipped_ : final_;
      return true;
    }
    if (link_update_->busy()) return true;
    changed_.wait(lock);
  }
}

void HostOptimizer::run_link() {
  pthread_setname_np(pthread_self(), "link");
  pool_.keep_caller_off();
  try {
    for (;;) {
      LinkTask task;
      if (!next_over_link(task)) return;
      delay_point();
      if (task.bucket != nullptr) {
        if (task.task == HostTask::update || task.task == HostTask::follow) gate_.wait(task.bucket->index());
        link_update_->begin(task);
        continue;
      }
      const std::optional<LinkUpdate::Done> done = link_update_->advance();
      if (!done) continue;
      {
        const std::lock_guard lock(mutex_);
        if (done->seconds > 0) link_pace_.add(done->task, done->seconds, bucket(done->index).own().size());
        schedule_.complete(done->index, done->task);
      }
      changed_.notify_all();
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

}  // namespace so
