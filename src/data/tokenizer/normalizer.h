// Unicode normalization forms (UAX #15), as the `tokenizers` library computes them.
#pragma once

#include <string>
#include <string_view>

namespace so {

// The NFC of `text` (valid UTF-8): `text` itself where nothing changes, else a view of `storage`.
// The library's tables are those of Unicode 9.0: characters added later keep their place and do not compose.
std::string_view to_nfc(std::string_view text, std::string& storage);

// The same for any form; those other than C are computed without a quick check.
enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::string_view to_normal_form(std::string_view text, NormalForm form, std::string& storage);

}  // namespace so
