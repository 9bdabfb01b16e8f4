#include "ops/checks.h"

#include <algorithm>

namespace so {

void expect_compute_dtype(const char* op, const char* argument, DType dtype) {
  SO_CHECK(dtype == DType::f32 || dtype == DType::bf16, "{}: {} is {}, not f32 or bf16", op, argument, name_of(dtype));
}

void expect_tensor(const char* op, const char* argument, const Tensor& tensor, DType dtype,
                   std::initializer_list<std::int64_t> shape) {
  const bool same_shape = std::ranges::equal(tensor.shape(), shape);
  SO_CHECK(same_shape, "{}: {} is {}, not {}", op, argument, shape_string(tensor.shape()),
           shape_string({shape.begin(), shape.size()}));
  SO_CHECK(tensor || tensor.size() == 0, "{}: {} is empty", op, argument);
  SO_CHECK(tensor.dtype() == dtype, "{}: {} is {}, not {}", op, argument, name_of(tensor.dtype()), name_of(dtype));
}

void expect_gradient(const char* op, const char* argument, const Tensor& tensor, DType t,
                     std::initializer_list<std::int64_t> shape) {
  expect_tensor(op, argument, tensor, tensor.dtype() == DType::f32 ? DType::f32 : t, shape);
}

void expect_heads(const char* op, const char* argument, const Heads& heads, DType dtype, std::int64_t n) {
  SO_CHECK(heads.rows.rank() == 2, "{}: {} has rows {}, not [N, width]", op, argument,
           shape_string(heads.rows.shape()));
  const std::int64_t width = heads.rows.dim(1);
  expect_tensor(op, argument, heads.rows, dtype, {n, width});
  SO_CHECK(heads.heads > 0 && heads.head_dim > 0 && heads.offset >= 0 && heads.step() >= heads.head_dim &&
               heads.offset + (heads.heads - 1) * heads.step() + heads.head_dim <= width,
           "{}: {} has {} heads of {}, {} apart, at {} in rows of {}", op, argument, heads.heads, heads.head_dim,
           heads.step(), heads.offset, width);
}

void expect_no_gaps(const char* op, const char* argument, const Heads& heads) {
  SO_CHECK(heads.step() == heads.head_dim, "{}: {} has heads of {}, {} apart: this op takes none with gaps", op,
           argument, heads.head_dim, heads.step());
}

void expect_rotation(const char* op, const Heads& heads, const Tensor& positions, const Tensor& table,
                     const HeadNorm& norm) {
  const std::int64_t n = heads.rows.dim(0);
  expect_tensor(op, "positions", positions, DType::i32, {n});
  SO_CHECK(table.rank() == 3, "{}: table is {}, not [positions, 2, R/2]", op, shape_string(table.shape()));
  expect_tensor(op, "table", table, DType::f32, {table.dim(0), 2, table.dim(2)});
  SO_CHECK(2 * table.dim(2) <= heads.head_dim, "{}: turns {} dimensions of {}", op, 2 * table.dim(2), heads.head_dim);
  if (norm.weight) {
    expect_tensor(op, "norm.weight", norm.weight, heads.rows.dtype(), {heads.head_dim});
    expect_tensor(op, "norm.inv_rms", norm.inv_rms, DType::f32, {n, heads.heads});
  }
}

void expect_shared_head(const char* op, const char* name_one, const Heads& one, const char* name_all,
                        const Heads& all) {
  expect_compute_dtype(op, name_all, all.rows.dtype());
  expect_heads(op, name_all, all, all.rows.dtype(), all.rows.dim(0));
  expect_heads(op, name_one, one, all.rows.dtype(), all.rows.dim(0));
  SO_CHECK(one.heads == 1 && one.head_dim == all.head_dim, "{}: {} has {} heads of {}, {} heads of {}", op, name_one,
           one.heads, one.head_dim, name_all, all.head_dim);
}

void expect_same_heads(const char* op, const char* name_a, const Heads& a, const char* name_b, const Heads& b) {
  SO_CHECK(a.rows.rank() == 2, "{}: {} has rows {}, not [N, width]", op, name_a, shape_string(a.rows.shape()));
  expect_heads(op, name_a, a, a.rows.dtype(), a.rows.dim(0));
  expect_heads(op, name_b, b, a.rows.dtype(), a.rows.dim(0));
  SO_CHECK(a.heads == b.heads && a.head_dim == b.head_dim, "{}: {} has {} heads of {}, {} has {} of {}", op, name_a,
           a.heads, a.head_dim, name_b, b.heads, b.head_dim);
}

void expect_counted_heads(const char* op, const char* argument, const Heads& heads, DType dtype, std::int64_t rows,
                          std::int64_t count, std::int64_t head_dim) {
  expect_heads(op, argument, heads, dtype, rows);
  SO_CHECK(heads.heads == count && heads.head_dim == head_dim, "{}: {} has {} heads of {}, not {} of {}", op, argument,
           heads.heads, heads.head_dim, count, head_dim);
}

void expect_documents(const char* op, const PackedDocuments& documents) {
  SO_CHECK(documents.count >= 0, "{}: {} documents", op, documents.count);
  expect_tensor(op, "documents.starts", documents.starts, DType::i32, {documents.count + 1});
}

void expect_projection_norm(const char* op, const Heads& out, const Heads& in, const HeadNorm& norm) {
  expect_compute_dtype(op, "in", in.rows.dtype());
  expect_same_heads(op, "in", in, "out", out);
  expect_no_gaps(op, "in", in);
  expect_no_gaps(op, "out", out);
  expect_tensor(op, "norm.weight", norm.weight, in.rows.dtype(), {in.heads * in.head_dim});
  expect_tensor(op, "norm.inv_rms", norm.inv_rms, DType::f32, {in.rows.dim(0)});
  SO_CHECK(in.rows.data() != out.rows.data() || in.offset != out.offset,
           "{}: the input must not be overwritten: the backward pass reads it", op);
}

void expect_add_scaled(const Tensor& out, const Tensor& x, const Tensor& delta) {
  const char* op = "add_scaled";
  expect_compute_dtype(op, "out", out.dtype());
  SO_CHECK(out.rank() == 2, "{}: out is {}", op, shape_string(out.shape()));
  expect_tensor(op, "delta", delta, out.dtype(), {out.dim(0), out.dim(1)});
  if (x) expect_tensor(op, "x", x, out.dtype(), {out.dim(0), out.dim(1)});
}

void expect_scale_sum(const Tensor& out, const Tensor& x, const Tensor& delta, const Tensor& factor) {
  const char* op = "scale_sum";
  expect_compute_dtype(op, "out", out.dtype());
  SO_CHECK(out.rank() == 2, "{}: out is {}", op, shape_string(out.shape()));
  expect_tensor(op, "delta", delta, out.dtype(), {out.dim(0), out.dim(1)});
  if (x) expect_tensor(op, "x", x, out.dtype(), {out.dim(0), out.dim(1)});
  expect_tensor(op, "factor", factor, out.dtype(), {1});
}

void expect_head_norm(const Heads& out, const Heads& in, const Tensor& inv_rms) {
  const char* op = "head_norm";
  expect_compute_dtype(op, "in", in.rows.dtype());
  expect_same_heads(op, "in", in, "out", out);
  expect_tensor(op, "inv_rms", inv_rms, DType::f32, {in.rows.dim(0), in.heads});
  SO_CHECK(in.rows.data() != out.rows.data() || in.offset != out.offset,
           "{}: the input must not be overwritten: the backward pass reads it", op);
}

void expect_head_norm_grad(const Ops::HeadNormGrad& g) {
  const char* op = "head_norm_grad";
  expect_compute_dtype(op, "in", g.in.rows.dtype());
  expect_same_heads(op, "in", g.in, "din", g.din);
  expect_same_heads(op, "in", g.in, "dout", g.dout);
  expect_tensor(op, "inv_rms", g.inv_rms, DType::f32, {g.in.rows.dim(0), g.in.heads});
  SO_CHECK(
      g.din_mode == Accumulate::overwrite || g.din.rows.data() != g.dout.rows.data() || g.din.offset != g.dout.offset,
      "{}: a gradient added to itself", op);
}

void expect_soft_cap(const Tensor& logits, float cap) {
  SO_CHECK(logits.dtype() == DType::f32 && logits.rank() == 2 && cap > 0, "soft_cap: {} {} and a cap of {}",
           name_of(logits.dtype()), shape_string(logits.shape()), cap);
}

void expect_add_gradient(const Tensor& dw, const Tensor& sum) {
  const char* op = "add_gradient";
  SO_CHECK(dw.dtype() == DType::f32 || dw.dtype() == DType::bf16, "{}: dw of {}", op, name_of(dw.dtype()));
  SO_CHECK(sum.dtype() == DType::f32 && std::ranges::equal(dw.shape(), sum.shape()), "{}: sum is {} {}, dw {}", op,
           name_of(sum.dtype()), shape_string(sum.shape()), shape_string(dw.shape()));
}

void expect_linear_cross_entropy(const Ops::LinearCrossEntropy& a, const OpsMemory& memory) {
  SO_CHECK(a.hidden.rank() == 2 && a.weight.rank() == 2 && a.hidden.dim(1) == a.weight.dim(1),
           "linear_cross_entropy: hidden {}, weight {}", shape_string(a.hidden.shape()),
           shape_string(a.weight.shape()));
  const DType type = a.hidden.dtype();
  const struct { std::int64_t tokens, hidden, vocabulary; } shape{a.hidden.dim(0), a.hidden.dim(1), a.weight.dim(0)};
  SO_CHECK((type == DType::f32 || type == DType::bf16) && a.weight.dtype() == type, "hidden {}, weight {}",
           name_of(type), name_of(a.weight.dtype()));
  SO_CHECK(a.targets.dtype() == DType::i32 && a.targets.size() == shape.tokens, "targets {} {} for {} rows",
           name_of(a.targets.dtype()), shape_string(a.targets.shape()), shape.tokens);
  SO_CHECK(a.losses.dtype() == DType::f32 && a.losses.size() == shape.tokens, "losses {} {} for {} rows",
           name_of(a.losses.dtype()), shape_string(a.losses.shape()), shape.tokens);
  SO_CHECK(a.workspace.dtype() == memory.logits_dtype(type) && a.workspace.rank() == 2 && a.workspace.dim(0) > 0 &&
               a.workspace.dim(1) == memory.logits_stride(shape.vocabulary),
           "workspace {} {} for a vocabulary of {}", name_of(a.workspace.dtype()), shape_string(a.workspace.shape()),
           shape.vocabulary);
  SO_CHECK(a.label_smoothing >= 0 && a.label_smoothing <= 1, "label smoothing of {}", a.label_smoothing);
  SO_CHECK(a.soft_cap >= 0, "a soft cap of {}", a.soft_cap);
  SO_CHECK(static_cast<bool>(a.rows) == static_cast<bool>(a.gathered),
           "rows without room to gather them, or room only");
  if (a.rows) {
    SO_CHECK(a.rows.dtype() == DType::i32 && a.rows.rank() == 1 && a.rows.size() <= shape.tokens, "rows {} {} of {}",
             name_of(a.rows.dtype()), shape_string(a.rows.shape()), shape.tokens);
    SO_CHECK(a.gathered.dtype() == type && a.gathered.rank() == 2 && a.gathered.dim(0) == shape.tokens &&
                 a.gathered.dim(1) == shape.hidden,
             "gathered {} {}", name_of(a.gathered.dtype()), shape_string(a.gathered.shape()));
  }
  SO_CHECK(a.dhidden || !a.dweight, "the weight's gradient without that of hidden");
  if (!a.dhidden) return;
  SO_CHECK(a.dhidden.dtype() == type && a.dhidden.rank() == 2 && a.dhidden.dim(0) == shape.tokens &&
               a.dhidden.dim(1) == shape.hidden,
           "dhidden {} {}", name_of(a.dhidden.dtype()), shape_string(a.dhidden.shape()));
  if (!a.dweight) return;
  SO_CHECK((a.dweight.dtype() == DType::f32 || a.dweight.dtype() == type) && a.dweight.rank() == 2 &&
               a.dweight.dim(0) == shape.vocabulary && a.dweight.dim(1) == shape.hidden,
           "dweight {} {}", name_of(a.dweight.dtype()), shape_string(a.dweight.shape()));
}

}  // namespace so
