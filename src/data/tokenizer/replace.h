// Replacing a literal text.
#pragma once

#include <string>
#include <string_view>

namespace so {

// `text` with each `pattern` (not empty) replaced, from left to right: `text` itself if there is none, else a view of
// `storage`, which must not hold `text`. Stops once the result has more than `most` bytes: it is longer than that then,
// and not whole.
inline std::string_view replace_all(std::string_view text, std::string_view pattern, std::string_view content,
                                    std::string& storage, std::size_t most = std::string_view::npos) {
  std::size_t found = text.find(pattern);
  if (found == std::string_view::npos) return text;
  storage.clear();
  std::size_t at = 0;
  for (; found != std::string_view::npos; found = text.find(pattern, at)) {
    storage.append(text, at, found - at).append(content);
    at = found + pattern.size();
    if (storage.size() > most) return storage;
  }
  storage.append(text, at);
  return storage;
}

}  // namespace so
