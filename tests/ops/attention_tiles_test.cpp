// Attention's gradient in tiles, as plans count on it.
#include "ops/attention_tiles.h"

#include <gtest/gtest.h>

#include "device/backend.h"
#include "ops/ops.h"

namespace so {
namespace {

TEST(AttentionTiles, TakeAllHeadsOnce) {
  for (const auto& [heads, kv_heads] : {std::pair{32, 8}, {40, 8}, {64, 8}, {7, 1}, {6, 6}, {8, 8}, {1, 1}, {12, 4}}) {
    const AttentionTiles tiles = attention_tiles(heads, kv_heads);
    EXPECT_EQ(kv_heads % tiles.kv_heads, 0);
    EXPECT_TRUE(tiles.parts == 1 || tiles.kv_heads == 1);
    std::int64_t next = 0;
    for (std::int64_t part = 0; part < tiles.parts; ++part) {
      EXPECT_EQ(tiles.first_head(part), next);
      EXPECT_GE(tiles.heads(part), 1);
      EXPECT_LE(tiles.heads(part), tiles.most_heads());
      next += tiles.heads(part);
    }
    EXPECT_EQ(next, tiles.kv_heads * heads / kv_heads);
    EXPECT_LE(tiles.most_heads(), 3);
  }
}

// So the backend finds tiles of the size that was measured, not smaller ones. The device is dry: it plans for a GPU.
TEST(AttentionTiles, FitIntoThePlannedScratch) {
  const auto device = make_dry_device(cuda_backend());
  const auto ops = make_ops(*device);
  for (const std::int64_t longest : {49'153, 65'536, 131'072, 524'288, 1'048'576})
    for (const auto& [heads, kv_heads] : {std::pair{32, 8}, {40, 8}, {64, 8}, {8, 8}})
      for (const std::int64_t dim : {64, 80, 128}) {
        const AttentionSize size{longest + 100, longest + 100, heads, kv_heads, dim, 7, longest, DType::bf16};
        const auto room = static_cast<std::int64_t>(ops->memory().attention_grad(size));
        EXPECT_GE(room, attention_tiles(heads, kv_heads).bytes(dim, longest)) << longest << " " << heads << " " << dim;
        // 1.5 GiB of dS, and what is linear in the length.
        EXPECT_LE(room, (std::int64_t{3} << 29) + (std::int64_t{1} << 28) + (longest + 1000) * (heads * 4 + 24 * dim));
      }
}

// Gradients of heads of 256 and more are kernels of ours, which keep no dS and know no other order.
TEST(AttentionTiles, AreNotForWideHeads) {
  const auto device = make_dry_device(cuda_backend());
  const auto ops = make_ops(*device);
  for (const std::int64_t longest : {4'096, 131'072})
    for (const std::int64_t dim : {256, 512})
      for (const std::int64_t window : {0, 1'024})
        for (const bool any_order : {false, true}) {
          AttentionSize size{131'072, 131'072, 24, 4, dim, 32, longest, DType::bf16};
          size.window = window, size.any_order = any_order;
          const std::size_t row_sums = 131'072 * 24 * 4;
          EXPECT_EQ(ops->memory().attention_grad(size), row_sums + 256) << longest << " " << dim << " " << window;
          EXPECT_EQ(ops->memory().attention_grad_most(size), row_sums + 256) << longest << " " << dim << " " << window;
        }
}

}  // namespace
}  // namespace so
