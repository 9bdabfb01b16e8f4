// A copy of the fixture's Hugging Face cache, to be changed by a test.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "support/files.h"
#include "support/paths.h"

namespace so::test {

class HubCacheTest : public testing::Test {
 protected:
  HubCacheTest() {
    using fs_options = std::filesystem::copy_options;
    std::filesystem::copy(std::filesystem::path(fixtures()) / "hub" / "cache", cache(),
                          fs_options::recursive | fs_options::copy_symlinks);
  }
  std::filesystem::path cache() const { return directory_ / "hub"; }

  TemporaryDirectory directory_;
};

}  // namespace so::test
