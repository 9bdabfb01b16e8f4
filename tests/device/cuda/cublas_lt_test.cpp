// Where the CUDA backend is compiled, with or without a GPU.
#include "device/cuda/cublas_lt.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace so::test {
namespace {

bool is_loaded() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  return dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD) != nullptr;
}

const bool loaded_at_start = is_loaded();

TEST(CublasLt, IsLoadedWhenItIsAskedFor) {
  EXPECT_FALSE(loaded_at_start) << "each start of the program takes 0.1 s and 150 MB more";
  std::string reason;
  const CublasLt* found = find_cublas_lt(reason);
  ASSERT_NE(found, nullptr) << reason;
  EXPECT_TRUE(is_loaded());
  EXPECT_EQ(found, &cublas_lt());
  // Calls that need no GPU.
  EXPECT_STREQ(found->status_string(CUBLAS_STATUS_SUCCESS), "success");
  cublasLtMatrixLayout_t layout = nullptr;
  ASSERT_EQ(found->layout_create(&layout, CUDA_R_32F, 2, 3, 2), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(found->layout_destroy(layout), CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace so::test
