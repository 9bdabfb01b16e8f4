#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/random_tensors.h"
#include "support/rig.h"

namespace so::test::copy_heads_test {
namespace {

using Values = std::vector<double>;

TEST(CopyHeads, CopiesThemAndNothingElse) {
  Rig rig(3);
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::int64_t n = 400, heads = 3, head_dim = 37, from_width = 130, to_width = 200;
    const TestTensor in = random_tensor(s, dtype, {n, from_width}, 1), out = random_tensor(s, dtype, {n, to_width}, 2);
    const Values from = in.values(s);
    Values expected = out.values(s);
    for (std::int64_t row = 0; row < n; ++row)
      std::copy_n(from.begin() + row * from_width + 19, heads * head_dim, expected.begin() + row * to_width + 7);
    rig.ops().copy_heads(s, {out, 7, heads, head_dim}, {in, 19, heads, head_dim});
    EXPECT_EQ(out.values(s), expected);
  }
}

TEST(CopyHeads, TakesHeadsWithGaps) {
  Rig rig(3);
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t head_dim : {64, 37}) {
      const std::int64_t n = 150, heads = 3, from_step = 2 * head_dim, from_width = 8 + heads * from_step,
                         to_width = heads * head_dim + 8;
      const TestTensor in = random_tensor(s, dtype, {n, from_width}, 1),
                       out = random_tensor(s, dtype, {n, to_width}, 2);
      const Values from = in.values(s);
      Values expected = out.values(s);
      for (std::int64_t row = 0; row < n; ++row)
        for (std::int64_t h = 0; h < heads; ++h)
          std::copy_n(from.begin() + row * from_width + 8 + h * from_step, head_dim,
                      expected.begin() + row * to_width + h * head_dim);
      rig.ops().copy_heads(s, {out, 0, heads, head_dim}, {in, 8, heads, head_dim, from_step});
      EXPECT_EQ(out.values(s), expected);
      const TestTensor back = random_tensor(s, dtype, {n, from_width}, 1);  // begins as a copy of `in`
      rig.ops().copy_heads(s, {back, 8, heads, head_dim, from_step}, {out, 0, heads, head_dim});
      EXPECT_EQ(back.bytes(s), in.bytes(s));
    }
}

TEST(Heads, OnlySomeOpsTakeGaps) {
  Rig rig;
  Stream& s = rig.stream();
  const TestTensor rows(s, DType::bf16, {4, 32}), out(s, DType::bf16, {4, 32}), weight(s, DType::bf16, {16}),
      inv_rms(s, DType::f32, {4});
  const Heads gaps{rows, 0, 2, 8, 16}, dense{out, 0, 2, 8};
  EXPECT_THROW(rig.ops().projection_norm(s, dense, gaps, HeadNorm{weight, 1e-6f, inv_rms}), Bug);
  EXPECT_THROW(rig.ops().projection_norm(s, gaps, dense, HeadNorm{weight, 1e-6f, inv_rms}), Bug);
  const TestTensor lse(s, DType::f32, {2, 4}), cu(s, DType::i32, {2}, {0, 4});
  AttentionSpans spans;
  spans.cu_q = spans.cu_k = cu;
  spans.documents = 1, spans.max_q = spans.max_k = 4, spans.scale = 1;
  EXPECT_THROW(rig.ops().attention(s, {.out = dense, .lse = lse, .q = gaps, .k = dense, .v = dense, .spans = spans}),
               Bug);
  EXPECT_THROW(rig.ops().copy_heads(s, dense, {rows, 0, 2, 8, 7}), Bug);   // they overlap
  EXPECT_THROW(rig.ops().copy_heads(s, dense, {rows, 0, 2, 8, 25}), Bug);  // past the row's end
}

}  // namespace
}  // namespace so::test::copy_heads_test
