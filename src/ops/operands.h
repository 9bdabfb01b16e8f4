// What operations take beside tensors, and the sizes that decide how much memory they need. ops.h has the rules for all
// of them, and what N and T are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/tensor.h"

namespace so {

// Heads inside wider rows: element (n, h, d) is rows[n, offset + h * step() + d].
struct Heads {
  Tensor rows;  // [N, width]
  std::int64_t offset = 0, heads = 0, head_dim = 0;
  // From a head to the next, 0: head_dim. Only ops that say so take heads with gaps between them.
  std::int64_t stride = 0;
  std::int64_t step() const { return stride != 0 ? stride : head_dim; }
};

// RMS normalisation of each head before the rotation (qk-norm). Empty weight: none.
struct HeadNorm {
  Tensor weight;  // T [head_dim]
  float epsilon = 0;
  Tensor inv_rms;           // f32 [N, heads], written forward, read backward
  float weight_offset = 0;  // as in NormTerms
};

// The numbers of an RMS norm. A lone epsilon converts, since that is all that most models need.
struct NormTerms {
  NormTerms(float epsilon_, float weight_offset_ = 0, float delta_scale_ = 1)
      : epsilon(epsilon_), weight_offset(weight_offset_), delta_scale(delta_scale_) {}
  float epsilon;
  float weight_offset;  // added to the stored weight: 1 in Gemma, whose weights are stored around 0
  float delta_scale;    // multiplies what is added to the residual stream [Granite]
};

// Which dimensions of a head turn together, of the R that turn.
enum class RotaryPairs : std::uint8_t {
  halves,      // d and d + R/2
  neighbours,  // 2d and 2d + 1
};

// The activation of an MLP: that of the gate in a gated one [Shazeer 2020], or of an MLP without a gate.
enum class MlpActivation : std::uint8_t {
  silu,          // x sigmoid(x): SwiGLU
  gelu_tanh,     // x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2: GEGLU [Hendrycks & Gimpel 2016]
  relu_squared,  // max(x, 0)^2, without a gate [Primer, So et al. 2021]
};
// Columns that the first product of an MLP makes for each of its activation: gate and up, or up alone.
constexpr std::int64_t inputs_of(MlpActivation activation) { return activation == MlpActivation::relu_squared ? 1 : 2; }

// Which rows attend to which. Document i has query rows [cu_q[i], cu_q[i+1]) and key rows [cu_k[i], cu_k[i+1]); its
// last query sees its last key (causal, aligned at the end: training has cu_q == cu_k, a KV cache has more keys). With
// as many query as key rows and max_q == max_k, cu_q and cu_k hold the same numbers.
struct AttentionSpans {
  Tensor cu_q, cu_k;  // i32 [documents + 1]
  // cu_q's numbers in host memory while the call is enqueued; empty if they are not known there. With them, documents
  // whose gradient needs more scratch than there is are taken one by one.
  std::span<const std::int32_t> starts;
  std::int64_t documents = 0;
  std::int64_t max_q = 0, max_k = 0;  // longest document, in rows
  float scale = 0;                    // multiplies q.k
  bool any_order = false;   // the gradient may be added up in any order, and differ in its last bits each time
  std::int64_t window = 0;  // keys that a query sees, its own the last of them; 0: all up to its own
  // T [q heads] or empty: a logit of each head that takes part in every query's softmax and has no value.
  Tensor sinks;
};

// The sizes that decide how much scratch attention needs.
struct AttentionSize {
  std::int64_t q_rows = 0, k_rows = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t documents = 0;  // at most
  std::int64_t longest = 0;    // document, in rows, at most
  DType dtype = DType::f32;
  std::int64_t window = 0;  // as in AttentionSpans
  bool sinks = false, any_order = false;
};

// Where the rows of a mixture of experts go. Each of N tokens chooses K of E experts. The pairs p = n K + j of token
// and choice are the rows of matrices with R = N K rows, sorted by expert, and by pair within an expert. All of this is
// on the device: the host never knows how many rows an expert has.
struct Routing {
  Tensor experts;  // i32 [N, K]: what chooses (RouterRule) is largest first, of equal ones the lower expert
  Tensor rows;     // i32 [N, K]: the row of a pair
  Tensor pairs;    // i32 [R]: the pair of a row
  Tensor weights;  // f32 [R]: what the row counts in its token's sum
  Tensor offsets;  // i32 [E + 1]: expert e has the rows [offsets[e], offsets[e + 1])
};

// How a router's logits choose experts, and how much those count.
struct RouterRule {
  enum class Scores : std::uint8_t {
    softmax,  // shares of all experts
    sigmoid,  // of each expert by itself [DeepSeek-AI 2024]
  };
  Scores scores = Scores::softmax;
  bool renormalized = false;  // a token's weights are divided by their sum; sigmoids by that and 1e-20
  float scale = 1;            // multiplies the weights
  // f32 [E] or empty, with sigmoids: the experts with the largest sums of score and bias are chosen, and weighed by
  // their scores alone.
  Tensor selection_bias{};
};

// How an expert's weight [E, ., .] lies: as x w^T takes it, or as x w does.
enum class ExpertLayout : std::uint8_t { out_in, in_out };

// The activation between an expert's first and second product, of gate and up, F columns each.
struct ExpertActivation {
  enum class Kind : std::uint8_t {
    swiglu,   // silu(gate) * up; gate is the first half of the columns, up the second
    geglu,    // the same with GELU by tanh (MlpActivation)
    clamped,  // (up' + 1) * gate' * sigmoid(1.702 gate'), gate' = min(gate, limit), up' = up clamped to +-limit; the
              // columns are gate, up, gate, up, ... [GPT-OSS]
    relu_squared,  // max(up, 0)^2: there is no gate, and F columns
  };
  Kind kind = Kind::swiglu;
  float limit = 0;
};
constexpr std::int64_t inputs_of(const ExpertActivation& activation) {
  return activation.kind == ExpertActivation::Kind::relu_squared ? 1 : 2;
}

// Documents whose rows lie one after another: document i has the rows [starts[i], starts[i + 1]). Rows that
// belong to no document are left alone.
struct PackedDocuments {
  Tensor starts;  // i32 [count + 1]
  std::int64_t count = 0;
};

// The sizes that decide how much scratch the gated delta rule needs.
struct DeltaSize {
  std::int64_t rows = 0, documents = 0, k_heads = 0, v_heads = 0, k_dim = 0, v_dim = 0;
  DType dtype = DType::f32;
};

// The sizes that decide how much scratch a state space needs.
struct StateSpaceSize {
  std::int64_t rows = 0, documents = 0, groups = 0, heads = 0, k_dim = 0, v_dim = 0;
  DType dtype = DType::f32;
};

// Memory that a backend's ops need beside their arguments, as functions of sizes alone: what a dry run counts on any
// machine is what the backend uses.
class OpsMemory {
 public:
  virtual ~OpsMemory() = default;

  // Device memory that the backend holds for as long as it lives.
  virtual std::size_t held() const = 0;
  // Bytes of device scratch for attention() and attention_grad(); 0: none, pass an empty tensor.
  virtual std::size_t attention(const AttentionSize&) const = 0;
  virtual std::size_t attention_grad(const AttentionSize&) const = 0;
  // With more than the least, attention_grad() may do more at a time; more than this is of no use.
  virtual std::size_t attention_grad_most(const AttentionSize&) const = 0;
  // Bytes of device scratch for delta_rule() and delta_rule_grad(); 0: none, pass an empty tensor.
  virtual std::size_t delta_rule(const DeltaSize&) const = 0;
  virtual std::size_t delta_rule_grad(const DeltaSize&) const = 0;
  // The same for state_space() and state_space_grad().
  virtual std::size_t state_space(const StateSpaceSize&) const = 0;
  virtual std::size_t state_space_grad(const StateSpaceSize&) const = 0;
  // The dtype in which linear_cross_entropy() keeps its logits, given T, and the elements from a row of them to the
  // next.
  virtual DType logits_dtype(DType activations) const = 0;
  virtual std::int64_t logits_stride(std::int64_t vocabulary) const = 0;
};

}  // namespace so
