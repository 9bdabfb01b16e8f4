// A text may spell a special token ("<|im_end|>"); this says how such a spelling is encoded.
#pragma once

namespace so {

enum class SpecialTokens {
  parsed,   // it is the special token, transformers' default
  as_text,  // it is text like any other, as with transformers' split_special_tokens
};

}  // namespace so
