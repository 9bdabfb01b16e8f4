// An update policy that does everything to every bucket, for tests of schedules.
#pragma once

#include <algorithm>
#include <cstddef>
#include <random>

#include "offload/schedule/update_policy.h"

namespace so::test {

// Anything for any bucket, anew every step.
class RandomPolicy final : public UpdatePolicy {
 public:
  explicit RandomPolicy(unsigned seed) : random_(seed) {}
  UpdateChoice choose(const UpdateFacts& facts) override {
    UpdateChoice choice;
    const auto leaning = static_cast<unsigned>(random_() % 4);  // some steps all alike
    for (std::size_t i = 0; i < facts.elements.size(); ++i) {
      choice.ahead.push_back(static_cast<Ahead>(leaning < 3 ? leaning : random_() % 3));
      choice.after.push_back(static_cast<After>(random_() % 2));
      choice.redo.push_back(static_cast<After>(random_() % 2));
    }
    chose_ahead_ = std::any_of(choice.ahead.begin(), choice.ahead.end(), [&](Ahead ahead) {
      return (ahead == Ahead::preview && facts.previews) || (ahead == Ahead::speculate && facts.spare_places > 0);
    });
    return choice;
  }

  // Returns whether the last choice has a bucket updated ahead of the verdict, or previewed, where that can be done.
  bool chose_ahead() const { return chose_ahead_; }

 private:
  std::mt19937 random_;
  bool chose_ahead_ = false;
};

}  // namespace so::test
