#include "device/trace_summary.h"

#include <gtest/gtest.h>

#include <numeric>

namespace so {
namespace {

TimeCategory of_kernel(const std::string& name) {
  TraceActivity activity;
  activity.name = name;
  return category_of(activity);
}

// Names as profilers show them on GPUs.
TEST(TraceSummary, KnowsKernelsByName) {
  for (const char* name :
       {"nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNT", "cutlass_80_tensorop_bf16_s16816gemm_bf16",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "cublasLt::splitKreduce_kernel"})
    EXPECT_EQ(of_kernel(name), TimeCategory::matrix_products) << name;
  for (const char* name : {"cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_128x128x128",
                           "cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90>>"})
    EXPECT_EQ(of_kernel(name), TimeCategory::attention) << name;
  EXPECT_EQ(of_kernel("so::(anonymous namespace)::add_rms_norm_kernel<__nv_bfloat16>"), TimeCategory::memory_bound);
  EXPECT_EQ(of_kernel("at::native::vectorized_elementwise_kernel"), TimeCategory::other);
  TraceActivity activity;
  activity.name = "flash";
  activity.category = WorkCategory::memory_bound;
  EXPECT_EQ(category_of(activity), TimeCategory::memory_bound) << "what work says of itself goes before its name";
  activity.kind = TraceKind::wait;
  EXPECT_EQ(category_of(activity), TimeCategory::idle);
  activity.kind = TraceKind::fill;
  EXPECT_EQ(category_of(activity), TimeCategory::copies);
}

// compute:  linear 10-30, swiglu 30-40,           attention 60-70
// copies:         20-------------50 (copy)              65-80 (copy)   90-100 waits
TEST(TraceSummary, AMomentCountsOnce) {
  Trace trace;
  trace.duration = 100;
  trace.tracks = {{"compute", true}, {"copies", true}, {"main", false}};
  trace.activities = {{0, TraceKind::work, "linear", 10, 30, 0, CopyDirection::none, WorkCategory::matrix_products},
                      {1, TraceKind::copy, "copy", 20, 50, 1000, CopyDirection::host_to_device},
                      {0, TraceKind::work, "swiglu", 30, 40, 0, CopyDirection::none, WorkCategory::memory_bound},
                      {0, TraceKind::work, "attention", 60, 70, 0, CopyDirection::none, WorkCategory::attention},
                      {1, TraceKind::copy, "copy", 65, 80, 500, CopyDirection::host_to_device},
                      {1, TraceKind::wait, "wait", 90, 100},
                      {2, TraceKind::host, "step", 0, 100}};
  const TimeSummary summary = summarize(trace);
  EXPECT_DOUBLE_EQ(summary[TimeCategory::matrix_products].share, 0.20);
  EXPECT_DOUBLE_EQ(summary[TimeCategory::memory_bound].share, 0.10);
  EXPECT_DOUBLE_EQ(summary[TimeCategory::attention].share, 0.10);
  EXPECT_DOUBLE_EQ(summary[TimeCategory::copies].share, 0.20);  // 40-50 and 70-80
  EXPECT_DOUBLE_EQ(summary[TimeCategory::idle].share, 0.40);    // 0-10, 50-60, 80-100
  EXPECT_DOUBLE_EQ(summary[TimeCategory::copies].busy_seconds, 45e-9);
  EXPECT_EQ(summary[TimeCategory::copies].bytes, 1500u);
  EXPECT_EQ(summary[TimeCategory::copies].count, 2);
  double sum = 0;
  for (const auto& category : summary.categories) sum += category.share;
  EXPECT_DOUBLE_EQ(sum, 1);
  ASSERT_EQ(summary.kernels.size(), 4u);
  EXPECT_EQ(summary.kernels[0].name, "copy");
  EXPECT_EQ(summary.kernels[0].count, 2);
  EXPECT_EQ(summary.kernels[1].name, "linear");
  EXPECT_EQ(summary.seconds, 100e-9);
}

TEST(TraceSummary, AnEmptyTraceIsIdle) {
  Trace trace;
  EXPECT_TRUE(summarize(trace).kernels.empty());
  trace.duration = 5;
  EXPECT_EQ(summarize(trace)[TimeCategory::idle].share, 1);
}

}  // namespace
}  // namespace so
