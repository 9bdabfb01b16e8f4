#include "base/number_formats.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace so {
namespace {

std::string refusal(const NumberFormats& formats) {
  try {
    check_formats(formats);
  } catch (const Bug& bug) {
    return bug.what();
  }
  return {};
}

TEST(NumberFormats, ModelsOwnDtypeDecidesAllButGradientsAndMoments) {
  const NumberFormats formats = model_formats(DType::bf16);
  EXPECT_EQ(formats.weights, DType::bf16);
  EXPECT_EQ(formats.activations, DType::bf16);
  EXPECT_EQ(formats.exported, DType::bf16);
  EXPECT_EQ(formats.gradients, DType::f32);
  EXPECT_EQ(formats.moments, DType::f32);
  EXPECT_EQ(model_formats(DType::f32), NumberFormats());
}

TEST(NumberFormats, CheckTakesWhatIsImplemented) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const DType gradients : {DType::f32, dtype})
      for (const DType moments : {DType::f32, DType::bf16, DType::u8})
        for (const DType exported : {DType::f32, DType::bf16}) {
          NumberFormats formats = model_formats(dtype);
          formats.gradients = gradients;
          formats.moments = moments;
          formats.exported = exported;
          EXPECT_EQ(refusal(formats), "");
        }
}

TEST(NumberFormats, CheckNamesTheRoleAndTheReason) {
  const auto says = [](const NumberFormats& formats, const std::string& text) {
    EXPECT_NE(refusal(formats).find(text), std::string::npos) << text << " in: " << refusal(formats);
  };
  says({.weights = DType::bf16},
       "weights in bfloat16 and activations in float32: an operation takes both in one format");
  says({.activations = DType::bf16}, "weights in float32 and activations in bfloat16");
  says({.gradients = DType::bf16}, "gradients in bfloat16 of weights in float32: operations write them in fp32 or");
  says({.weights = DType::u8, .activations = DType::u8}, "weights in uint8: only fp32 and bf16 are implemented");
  says({.activations = DType::f16}, "activations in float16");
  says({.gradients = DType::f16}, "gradients in float16: only fp32 and bf16");
  says({.moments = DType::f16}, "moments in float16: only fp32, bf16 and 8-bit codes");
  says({.exported = DType::f16}, "exported weights in float16");
}

}  // namespace
}  // namespace so
