// Lets a background save read the optimizer state while training goes on: an update of a bucket waits until the save
// has read that bucket, and no other.
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

namespace so {

class SaveGate {
 public:
  explicit SaveGate(int buckets) : pending_(static_cast<std::size_t>(buckets), false) {}

  // A save begins: every bucket is to be read. Bug if one is under way.
  void begin();
  // Whether a save has still to read this bucket.
  bool pending(int bucket) const;
  // The save has read this bucket.
  void passed(int bucket);
  // The save ended, well or not: nobody waits any longer.
  void end();
  // Returns once no save needs the bucket as it is. Seconds waited.
  double wait(int bucket);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> pending_;
  bool active_ = false;
};

}  // namespace so
