// Tensors of more than 2^31 elements, which a million tokens make of nearly every activation: the last rows of a whole
// call are those of a call on these rows alone. And attention over half a million tokens, against double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "base/error.h"
#include "support/random_tensors.h"
#include "support/rig.h"

namespace so::test::long_rows_gpu_test {
namespace {

constexpr std::int64_t long_rows = 600'000, row_width = 4096;  // 2.5e9 elements
constexpr std::int64_t last_rows = 5;

class LongRowsGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!on_gpu()) GTEST_SKIP() << "needs a GPU with 60 GB of free memory";
    try {
      rig_ = std::make_unique<Rig>();
      device().allocate(MemoryKind::device, std::size_t{60} << 30, "probe");
    } catch (const Error& error) {
      GTEST_SKIP() << "needs a GPU with 60 GB of free memory: " << error.what();
    }
  }
  Device& device() { return rig_->device(); }
  Stream& stream() { return rig_->stream(); }
  Ops& ops() { return rig_->ops(); }
  // Of unspecified contents; lives as long as the test.
  Tensor make(DType dtype, std::initializer_list<std::int64_t> shape) {
    buffers_.push_back(device().allocate(MemoryKind::device, Tensor(nullptr, dtype, shape).bytes(), "long tensor"));
    return {buffers_.back().data(), dtype, shape};
  }
  Tensor random(std::initializer_list<std::int64_t> shape, std::uint64_t seed, float deviation = 1) {
    const Tensor tensor = make(DType::bf16, shape);
    ops().random_normal(stream(), tensor, seed, deviation);
    return tensor;
  }
  Tensor integers(std::int64_t count, const std::function<std::int32_t(std::int64_t)>& value) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = value(i);
    const Tensor tensor = make(DType::i32, {count});
    stream().copy(tensor.data(), values.data(), tensor.bytes());
    stream().synchronize();
    return tensor;
  }
  std::vector<std::byte> bytes(const Tensor& tensor) {
    std::vector<std::byte> result(tensor.bytes());
    stream().copy(result.data(), tensor.data(), result.size());
    stream().synchronize();
    return result;
  }
  std::vector<double> values(const Tensor& tensor) {
    const std::vector<std::byte> raw = bytes(tensor);
    std::vector<double> result(static_cast<std::size_t>(tensor.size()));
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (tensor.dtype() == DType::bf16) {
        bf16 value;
        std::memcpy(&value, raw.data() + 2 * i, 2);
        result[i] = static_cast<float>(value);
      } else {
        float value = 0;
        std::memcpy(&value, raw.data() + 4 * i, 4);
        result[i] = value;
      }
    }
    return result;
  }
  static Tensor last(const Tensor& tensor) { return tensor.rows(tensor.dim(0) - last_rows, last_rows); }
  void expect_same(const Tensor& whole, const Tensor& rows, const char* what) {
    EXPECT_EQ(bytes(last(whole)), bytes(rows)) << what;
  }

 private:
  std::unique_ptr<Rig> rig_;
  std::vector<Buffer> buffers_;
};

TEST_F(LongRowsGpu, NormsAndSums) {
  const Tensor x = random({long_rows, row_width}, 1), delta = random({long_rows, row_width}, 2),
               weight = random({row_width}, 3), inv_rms = make(DType::f32, {long_rows}),
               out = make(DType::bf16, {long_rows, row_width}), sum = make(DType::bf16, {long_rows, row_width});
  const Tensor few = make(DType::bf16, {last_rows, row_width}), few_sum = make(DType::bf16, {last_rows, row_width}),
               few_rms = make(DType::f32, {last_rows});
  const NormTerms terms{1e-6f};
  ops().add_rms_norm(stream(), out, sum, inv_rms, x, delta, weight, terms);
  ops().add_rms_norm(stream(), few, few_sum, few_rms, last(x), last(delta), weight, terms);
  expect_same(out, few, "norm");
  expect_same(sum, few_sum, "sum");
  expect_same(inv_rms, few_rms, "inverse rms");

  const Tensor dweight = make(DType::f32, {row_width});
  const auto gradient = [&](Tensor dx, Tensor dout, Tensor v, Tensor r) {
    ops().rms_norm_grad(stream(), {.dx = dx, .dweight = dweight, .dout = dout, .x = v, .inv_rms = r, .weight = weight});
  };
  gradient(out, delta, sum, inv_rms);
  gradient(few, last(delta), few_sum, few_rms);
  expect_same(out, few, "gradient of the norm");

  ops().add_scaled(stream(), out, x, delta, 0.5f);
  ops().add_scaled(stream(), few, last(x), last(delta), 0.5f);
  expect_same(out, few, "scaled sum");
}

TEST_F(LongRowsGpu, ActivationRotationAndEmbedding) {
  constexpr std::int64_t vocabulary = 1000, heads = 32, head_dim = 128;
  const Tensor x = random({long_rows, row_width}, 1), out = make(DType::bf16, {long_rows, row_width}),
               few = make(DType::bf16, {last_rows, row_width});
  const Tensor half = make(DType::bf16, {long_rows, row_width / 2}),
               few_half = make(DType::bf16, {last_rows, row_width / 2});
  ops().swiglu(stream(), half, x);
  ops().swiglu(stream(), few_half, last(x));
  expect_same(half, few_half, "swiglu");
  ops().swiglu_grad(stream(), out, half, x, Tensor());
  ops().swiglu_grad(stream(), few, few_half, last(x), Tensor());
  expect_same(out, few, "gradient of swiglu");

  const Tensor positions = integers(long_rows, [](std::int64_t i) { return static_cast<std::int32_t>(i); });
  const Tensor table = make(DType::f32, {long_rows, 2, head_dim / 2});
  ops().random_normal(stream(), table, 4, 1);
  ops().rotary(stream(), {out, 0, heads, head_dim}, {x, 0, heads, head_dim}, positions, table, {});
  ops().rotary(stream(), {few, 0, heads, head_dim}, {last(x), 0, heads, head_dim}, last(positions), table, {});
  expect_same(out, few, "rotation");

  const Tensor ids = integers(long_rows, [](std::int64_t i) { return static_cast<std::int32_t>(i % vocabulary); });
  const Tensor words = random({vocabulary, row_width}, 5);
  ops().embedding(stream(), out, words, ids);
  ops().embedding(stream(), few, words, last(ids));
  expect_same(out, few, "embedding");
}

TEST_F(LongRowsGpu, ProductsAndSumsOverRows) {
  constexpr std::int64_t inner = 64;
  const Tensor x = random({long_rows, inner}, 1), w = random({row_width, inner}, 2),
               out = make(DType::bf16, {long_rows, row_width}), few = make(DType::bf16, {last_rows, row_width});
  ops().linear(stream(), out, x, w, Tensor(), Accumulate::overwrite);
  ops().linear(stream(), few, last(x), w, Tensor(), Accumulate::overwrite);
  // Another number of rows may be summed in another order: some fp32 roundoffs, and at most another rounding to bf16.
  const std::vector<double> whole = values(last(out)), rows = values(few);
  for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(whole[i], rows[i], 0x1p-7 * std::abs(rows[i]) + 1e-4) << i;

  // A bias's gradient goes through partial sums in scratch, which so many rows of so many columns would exceed.
  constexpr std::int64_t many = 524'288, columns = 16'640;
  const Tensor dy = random({many, columns}, 3);
  const Tensor at_once = make(DType::f32, {columns}), in_halves = make(DType::f32, {columns});
  ops().linear_grad_bias(stream(), at_once, dy, Accumulate::overwrite);
  ops().linear_grad_bias(stream(), in_halves, dy.rows(0, many / 2), Accumulate::overwrite);
  ops().linear_grad_bias(stream(), in_halves, dy.rows(many / 2, many / 2), Accumulate::add);
  const std::vector<double> a = values(at_once), b = values(in_halves);
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 0.05) << i;  // of sums of about 724

  // More tiles of experts' rows than a grid's second dimension has blocks.
  constexpr std::int64_t tall = 5'000'000, side = 8;
  const Tensor narrow = random({tall, side}, 4), expert = random({1, side, side}, 5),
               y = make(DType::bf16, {tall, side}), few_y = make(DType::bf16, {last_rows, side});
  const auto offsets = [&](std::int64_t n) {
    return integers(2, [n](std::int64_t i) { return static_cast<std::int32_t>(i * n); });
  };
  ops().expert_linear(stream(), y, narrow, expert, ExpertLayout::out_in, offsets(tall));
  ops().expert_linear(stream(), few_y, last(narrow), expert, ExpertLayout::out_in, offsets(last_rows));
  const std::vector<double> tall_values = values(last(y)), few_values = values(few_y);
  for (std::size_t i = 0; i < few_values.size(); ++i)
    ASSERT_NEAR(tall_values[i], few_values[i], 0x1p-7 * std::abs(few_values[i]) + 1e-4) << i;
}

// Four query heads on a key head, at the end of rows as wide as Llama-8B's q, k and v: the last ones begin beyond
// element 2^31. Rows of the result against double precision.
class LongAttentionGpu : public LongRowsGpu {
 protected:
  static constexpr std::int64_t tokens = 524'288, width = 6144, heads = 4, dim = 128;
  static constexpr float scale = 0.088388348f;

  struct Row {
    std::vector<double> out;  // [dim]
    double largest = 0, sum = 0;
  };
  static double dot(const double* a, const double* b) {
    double sum = 0;
    for (std::int64_t d = 0; d < dim; ++d) sum += a[d] * b[d];
    return sum;
  }
  // Query `row` of its document, which begins at `begin`.
  static Row attend(const double* query, const std::vector<double>& k, const std::vector<double>& v, std::int64_t begin,
                    std::int64_t row) {
    std::vector<double> scores;
    Row result{std::vector<double>(dim), -1e30, 0};
    for (std::int64_t c = begin; c <= row; ++c) {
      scores.push_back(scale * dot(query, k.data() + c * dim));
      result.largest = std::max(result.largest, scores.back());
    }
    for (std::int64_t c = begin; c <= row; ++c) {
      const double p = std::exp(scores[static_cast<std::size_t>(c - begin)] - result.largest);
      result.sum += p;
      for (std::int64_t d = 0; d < dim; ++d)
        result.out[static_cast<std::size_t>(d)] += p * v[static_cast<std::size_t>(c * dim + d)];
    }
    for (double& x : result.out) x /= result.sum;
    return result;
  }
  static void expect_near(const std::vector<double>& actual, const std::vector<double>& expected, double relative,
                          const std::string& what) {
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
      norm += expected[i] * expected[i];
    }
    EXPECT_GT(norm, 0) << what;
    EXPECT_LE(std::sqrt(difference), relative * std::sqrt(norm)) << what;
  }
  // The head's rows next to each other.
  Tensor compact(const Tensor& rows, std::int64_t offset) {
    const Tensor to = make(DType::bf16, {tokens, dim});
    ops().copy_heads(stream(), {to, 0, 1, dim}, {rows, offset, 1, dim});
    return to;
  }

  void run(std::vector<std::int32_t> cu) {
    const Tensor qkv = random({tokens, width}, 1), dqkv = make(DType::bf16, {tokens, width});
    const Tensor out = make(DType::bf16, {tokens, heads * dim}), dout = random({tokens, heads * dim}, 2);
    const std::int64_t k_at = width - 2 * dim, v_at = width - dim, q_at = k_at - heads * dim;
    AttentionSpans spans;
    spans.cu_q = spans.cu_k = integers(std::ssize(cu), [&](std::int64_t i) { return cu[static_cast<std::size_t>(i)]; });
    spans.starts = cu;
    spans.documents = std::ssize(cu) - 1;
    for (std::size_t i = 1; i < cu.size(); ++i)
      spans.max_q = spans.max_k = std::max<std::int64_t>(spans.max_q, cu[i] - cu[i - 1]);
    spans.scale = scale;
    const AttentionSize size{tokens, tokens, heads, 1, dim, spans.documents, spans.max_q, DType::bf16};
    const auto scratch = [&](std::size_t bytes) { return make(DType::u8, {static_cast<std::int64_t>(bytes)}); };
    const Ops::Attention forward{.out = {out, 0, heads, dim},
                                 .lse = make(DType::f32, {heads, tokens}),
                                 .q = {qkv, q_at, heads, dim},
                                 .k = {qkv, k_at, 1, dim},
                                 .v = {qkv, v_at, 1, dim},
                                 .spans = spans,
                                 .scratch = scratch(ops().memory().attention(size))};
    ops().attention(stream(), forward);
    ops().attention_grad(stream(), {.dq = {dqkv, q_at, heads, dim},
                                    .dk = {dqkv, k_at, 1, dim},
                                    .dv = {dqkv, v_at, 1, dim},
                                    .dout = {dout, 0, heads, dim},
                                    .forward = forward,
                                    .scratch = scratch(ops().memory().attention_grad(size))});
    stream().synchronize();

    const std::vector<double> k = values(compact(qkv, k_at)), v = values(compact(qkv, v_at));
    const auto row_of = [&](const Tensor& rows, std::int64_t row, std::int64_t offset, std::int64_t count) {
      const std::vector<double> all = values(rows.rows(row, 1));
      return std::vector<double>(all.begin() + offset, all.begin() + offset + count);
    };
    const auto begin_of = [&](std::int64_t row) {
      std::int64_t begin = 0;
      for (const std::int32_t at : cu)
        if (at <= row) begin = at;
      return begin;
    };
    // Queries, and of the last keys the gradients, to which only the last queries add.
    constexpr std::int64_t keys = 3;
    std::vector<std::vector<double>> dk(keys, std::vector<double>(dim)), dv = dk;
    std::vector<std::int64_t> rows{0, 70'000, 349'526, tokens - keys, tokens - 2, tokens - 1};
    for (const std::int64_t row : rows)
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::string what = "row " + std::to_string(row) + ", head " + std::to_string(head);
        const std::vector<double> q = row_of(qkv, row, q_at + head * dim, dim), dy = row_of(dout, row, head * dim, dim);
        const std::int64_t begin = begin_of(row);
        const Row expected = attend(q.data(), k, v, begin, row);
        expect_near(row_of(out, row, head * dim, dim), expected.out, 0.01, what);
        const double delta = dot(dy.data(), expected.out.data());
        std::vector<double> dq(dim);
        for (std::int64_t c = begin; c <= row; ++c) {
          const double p = std::exp(scale * dot(q.data(), k.data() + c * dim) - expected.largest) / expected.sum;
          const double ds = scale * p * (dot(dy.data(), v.data() + c * dim) - delta);
          for (std::int64_t d = 0; d < dim; ++d)
            dq[static_cast<std::size_t>(d)] += ds * k[static_cast<std::size_t>(c * dim + d)];
          if (const std::int64_t key = c - (tokens - keys); key >= 0)
            for (std::size_t d = 0; d < dim; ++d) {
              dk[static_cast<std::size_t>(key)][d] += ds * q[d];
              dv[static_cast<std::size_t>(key)][d] += p * dy[d];
            }
        }
        if (row > begin) expect_near(row_of(dqkv, row, q_at + head * dim, dim), dq, 0.05, what + ", dq");
      }
    for (std::int64_t key = 0; key < keys; ++key) {
      const std::string what = "key " + std::to_string(tokens - keys + key);
      expect_near(row_of(dqkv, tokens - keys + key, k_at, dim), dk[static_cast<std::size_t>(key)], 0.05, what + ", dk");
      expect_near(row_of(dqkv, tokens - keys + key, v_at, dim), dv[static_cast<std::size_t>(key)], 0.05, what + ", dv");
    }
  }
};

TEST_F(LongAttentionGpu, OneDocument) { run({0, tokens}); }
TEST_F(LongAttentionGpu, Ragged) { run({0, 65, 200'001, tokens}); }

}  // namespace
}  // namespace so::test::long_rows_gpu_test
