// Argument checks that backends share, made when an op is enqueued: Bug with the op, the argument and both shapes.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "base/tensor.h"
#include "ops/ops.h"

namespace so {

// Expects f32 or bf16.
void expect_compute_dtype(const char* op, const char* argument, DType dtype);

// Expects a tensor that is present, of this dtype and shape.
void expect_tensor(const char* op, const char* argument, const Tensor& tensor, DType dtype,
                   std::initializer_list<std::int64_t> shape);

// Expects a weight's gradient: f32 or T, the compute dtype.
void expect_gradient(const char* op, const char* argument, const Tensor& tensor, DType t,
                     std::initializer_list<std::int64_t> shape);

// Expects heads of this dtype, N rows, inside their rows. They may have gaps between them.
void expect_heads(const char* op, const char* argument, const Heads& heads, DType dtype, std::int64_t n);

// Expects heads side by side.
void expect_no_gaps(const char* op, const char* argument, const Heads& heads);

// Expects the same heads in other rows.
void expect_same_heads(const char* op, const char* name_a, const Heads& a, const char* name_b, const Heads& b);

// Expects heads of this dtype, as many and as large as said, N rows. They may have gaps between them.
void expect_counted_heads(const char* op, const char* argument, const Heads& heads, DType dtype, std::int64_t n,
                          std::int64_t count, std::int64_t head_dim);

// Expects the starts of documents; where they lie is looked at when the op runs.
void expect_documents(const char* op, const PackedDocuments& documents);

// Expects one head, and heads of its size in other rows.
void expect_shared_head(const char* op, const char* name_one, const Heads& one, const char* name_all, const Heads& all);

// Checks what Ops states of a rotation: positions, table and norm for these heads.
void expect_rotation(const char* op, const Heads& heads, const Tensor& positions, const Tensor& table,
                     const HeadNorm& norm);

// Checks what Ops states of a whole projection's norm.
void expect_projection_norm(const char* op, const Heads& out, const Heads& in, const HeadNorm& norm);

// Checks what Ops states of add_scaled().
void expect_add_scaled(const Tensor& out, const Tensor& x, const Tensor& delta);

// Checks what Ops states of scale_sum().
void expect_scale_sum(const Tensor& out, const Tensor& x, const Tensor& delta, const Tensor& factor);

// Checks what Ops states of head_norm() and its gradient.
void expect_head_norm(const Heads& out, const Heads& in, const Tensor& inv_rms);
void expect_head_norm_grad(const Ops::HeadNormGrad& g);

// Checks what Ops states of soft_cap().
void expect_soft_cap(const Tensor& logits, float cap);

// Checks what Ops states of add_gradient().
void expect_add_gradient(const Tensor& dw, const Tensor& sum);

// Checks what Ops states of the arguments, for a backend whose logits are as `memory` says.
void expect_linear_cross_entropy(const Ops::LinearCrossEntropy& args, const OpsMemory& memory);

}  // namespace so
