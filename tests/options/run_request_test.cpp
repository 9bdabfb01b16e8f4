#include "options/run_request.h"

#include <gtest/gtest.h>

#include "options/train_options.h"

namespace so {
namespace {

NumberFormats formats_of(DType model_dtype, std::int64_t micro_batches, StatePrecision state = StatePrecision::fp32,
                         SumPrecision sums = SumPrecision::fp32, int gpus = 1) {
  TrainOptions options;
  options.gradient_accumulation_steps = micro_batches;
  options.optimizer_state_dtype = state;
  options.grad_accum_dtype = sums;
  options.gpus = gpus;
  return number_formats(run_request(options, OptionOrigins(), model_dtype));
}

TEST(RunRequest, BecomesNumberFormatsByRole) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t micro_batches : {1, 2, 16})
      for (const auto& [state, moments] : {std::pair{StatePrecision::fp32, DType::f32},
                                           {StatePrecision::bf16, DType::bf16},
                                           {StatePrecision::fp8, DType::u8}}) {
        SCOPED_TRACE(testing::Message() << name_of(dtype) << ", " << micro_batches << " micro-batches");
        const NumberFormats formats = formats_of(dtype, micro_batches, state);
        EXPECT_EQ(formats.weights, dtype);
        EXPECT_EQ(formats.activations, dtype);
        EXPECT_EQ(formats.exported, dtype);
        EXPECT_EQ(formats.gradients, micro_batches == 1 ? dtype : DType::f32);
        EXPECT_EQ(formats.moments, moments);
      }
}

TEST(RunRequest, AddsUpGradientsAsAsked) {
  for (const std::int64_t micro_batches : {1, 4}) {
    EXPECT_EQ(formats_of(DType::bf16, micro_batches, StatePrecision::fp32, SumPrecision::bf16).gradients, DType::bf16);
    EXPECT_THROW(formats_of(DType::f32, micro_batches, StatePrecision::fp32, SumPrecision::bf16), Error);
    const NumberFormats narrow = formats_of(DType::bf16, micro_batches, StatePrecision::fp32, SumPrecision::bf16, 2);
    EXPECT_EQ(narrow.gradients, DType::bf16);
    EXPECT_EQ(narrow.rank_sums, DType::bf16);
    EXPECT_EQ(formats_of(DType::bf16, micro_batches, StatePrecision::fp32, SumPrecision::fp32, 2).rank_sums,
              DType::f32);
    EXPECT_EQ(formats_of(DType::bf16, micro_batches, StatePrecision::fp32, SumPrecision::fp32, 2).gradients,
              micro_batches == 1 ? DType::bf16 : DType::f32)
        << "each rank's, which are added up in fp32";
  }
}

// No option asks for such a format, so it is the program's own mistake.
TEST(RunRequest, RefusesFormatsThatAreNotImplemented) { EXPECT_THROW(formats_of(DType::f16, 1), Bug); }

TEST(Fp8KeepLayers, AreSoManyOfTheFirstAndTheLast) {
  const auto kept = [](const char* text, bool fp8 = true) {
    TrainOptions options;
    options.fp8 = fp8;
    options.fp8_keep_layers = text;
    return kept_layers(options);
  };
  EXPECT_EQ(kept("first=1").first, 1);
  EXPECT_EQ(kept("first=1").last, 0);
  EXPECT_EQ(kept("last=12,first=3").first, 3);
  EXPECT_EQ(kept("last=12,first=3").last, 12);
  for (const char* wrong : {"", "1", "first", "first=", "first=-1", "first=1.5", "first=1,", "middle=1", "first=1 ",
                            "first=99999999999999999999"})
    EXPECT_THROW(kept(wrong), Error) << wrong;
  EXPECT_THROW(kept("first=1", false), Error);
}

}  // namespace
}  // namespace so
