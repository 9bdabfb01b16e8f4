// Helpers of the io tests: files and expected errors.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "support/files.h"
#include "support/paths.h"

namespace so::io_test {

using test::read_file;
using test::TemporaryDirectory;

inline void write_file(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::remove(path);  // ext4 flushes a file that is emptied and written again: milliseconds each
  std::ofstream out(path, std::ios::binary);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

inline std::filesystem::path fixture(std::string_view name) {
  return std::filesystem::path(test::fixtures()) / "io" / name;
}

inline std::vector<std::string> names_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// The message of the Error that `action` throws: one line that holds each of `parts`.
template <class ErrorType = Error>
std::string expect_error(const std::function<void()>& action, std::initializer_list<std::string_view> parts) {
  try {
    action();
  } catch (const ErrorType& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), message.npos) << message;
    for (const std::string_view part : parts)
      EXPECT_NE(message.find(part), message.npos) << "'" << part << "' in: " << message;
    return message;
  } catch (const std::exception& other) {
    ADD_FAILURE() << "another exception: " << other.what();
    return {};
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace so::io_test
