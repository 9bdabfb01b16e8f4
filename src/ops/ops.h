// The operations of a decoder, forward and backward, each declared once. A backend implements the class: ops/cpu is the
// readable reference that also runs real work, ops/cuda the fast one; ops/dry does nothing (for dry runs).
//
// Rules for every op:
//  - It is enqueued on the stream and returns. Tensors are views of the stream's device memory and must live until it
//    has run. Arguments are checked when it is enqueued (Bug on a wrong shape or dtype).
//  - N is the number of tokens of a micro-batch: the rows of all its documents one after another, without padding.
//    Matrices are row-major, weights [out, in] as Hugging Face stores them.
//  - "T", the compute dtype, is the format of activations and of the weights they meet (base/number_formats.h), f32 or
//    bf16; all T tensors of a call agree. Arithmetic inside is fp32.
//  - Gradients of weights ("dw") are f32 or T and are overwritten or added to, as the Accumulate argument says.
//  - The same arguments give the same bits, whatever the number of threads, but for AttentionSpans::any_order.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "base/accumulate.h"
#include "base/tensor.h"
#include "device/device.h"
#include "ops/fp8_matrix.h"
#include "ops/operands.h"

namespace so {

class Ops {
 public:
  virtual ~Ops() = default;

  // The same on a dry device as on a backed one of its kind.
  const OpsMemory& memory() const { return memory_; }

  // out[n] = table[ids[n]].  out T [N, H], table T [V, H], ids i32 [N] in [0, V).
  virtual void embedding(Stream&, Tensor out, Tensor table, Tensor ids) = 0;
  // dtable[ids[n]] += dout[n] in order of n; overwrite clears dtable first.  dtable f32 or T [V, H].
  virtual void embedding_grad(Stream&, Tensor dtable, Tensor dout, Tensor ids, Accumulate) = 0;

  // out = x w^T (+ bias) (+ out).  x T [N, I], w T [O, I], bias T [O] or empty, out T or f32 [N, O].
  virtual void linear(Stream&, Tensor out, Tensor x, Tensor w, Tensor bias, Accumulate) = 0;
  // dx = dy w (+ dx).  dx T [N, I], dy T [N, O].
  virtual void linear_grad_input(Stream&, Tensor dx, Tensor dy, Tensor w, Accumulate) = 0;
  // dw = dy^T x (+ dw).  dw f32 or T [O, I].
  virtual void linear_grad_weight(Stream&, Tensor dw, Tensor dy, Tensor x, Accumulate) = 0;
  // dbias = column sums of dy (+ dbias).  dbias f32 or T [O].
  virtual void linear_grad_bias(Stream&, Tensor dbias, Tensor dy, Accumulate) = 0;

  // ---- The same products in FP8 ----
  // Whether fp8_product() can be called: the device has such products.
  virtual bool multiplies_fp8() const { return true; }
  // Rounds x, T [N, K], to E4M3 with the scales of its present values: `rows` is the matrix, and `columns` the
  // transposed one, [K, N]; both have the same kind of blocks, or one is empty. Blocks of rows are 128 elements of a
  // row of each. K is a multiple of 128.
  virtual void fp8_quantise(Stream&, Fp8Matrix rows, Fp8Matrix columns, Tensor x) = 0;
  // The same of the norm that add_rms_norm() makes of x, T [N, K], from its inv_rms: `columns` alone, in squares.
  virtual void fp8_quantise_norm(Stream&, Fp8Matrix columns, Tensor x, Tensor inv_rms, Tensor weight,
                                 float weight_offset) = 0;
  // out = a b^T (+ bias) (+ out). a [N, K] in blocks of rows, b [O, K] in squares, out f32 or T [N, O], bias T [O] or
  // empty.  With x in rows and w in squares that is linear(); with dy in rows and w transposed, linear_grad_input();
  // and with columns of dy and squares of x transposed, linear_grad_weight().
  virtual void fp8_product(Stream&, Tensor out, Fp8Matrix a, Fp8Matrix b, Tensor bias, Accumulate) = 0;

  // sum = x + delta_scale * delta; out = sum * inv_rms * (weight_offset + weight); inv_rms = 1 / sqrt(mean(sum^2) +
  // epsilon).  x, delta, sum, out T [N, H]; weight T [H]; inv_rms f32 [N]. With an empty delta sum is empty too: the
  // norm is of x. sum may be x or delta. [RMSNorm, Zhang & Sennrich 2019]
  // `rows`, or empty, receives out as fp8_quantise() rounds it, in blocks of rows; out may be empty then.
  virtual void add_rms_norm(Stream&, Tensor out, Tensor sum, Tensor inv_rms, Tensor x, Tensor delta, Tensor weight,
                            NormTerms, Fp8Matrix rows = {}) = 0;
  // dx = gradient through the norm (+ residual).
  struct RmsNormGrad {
    Tensor dx;          // T [N, H]; may be residual or dout
    Tensor dweight;     // f32 or T [H]
    Tensor dout;        // T [N, H]
    Tensor residual{};  // T [N, H] or empty
    Tensor x;           // T [N, H], what was normalised
    Tensor inv_rms;     // f32 [N]
    Tensor weight;      // T [H]
    Accumulate dweight_mode = Accumulate::overwrite;
    float weight_offset = 0;
  };
  virtual void rms_norm_grad(Stream&, const RmsNormGrad&) = 0;
  // The norm of a whole projection inside wider rows: all heads of a row are normalised as one [OLMo 2]. norm.weight T
  // [heads * head_dim], norm.inv_rms f32 [N]. out must not be in: the backward pass reads it.
  virtual void projection_norm(Stream&, Heads out, Heads in, HeadNorm norm) = 0;
  struct ProjectionNormGrad {
    Heads din, dout;  // din may be dout
    Heads in;         // the forward input
    HeadNorm norm;
    Tensor dweight;  // f32 or T [heads * head_dim]
    Accumulate dweight_mode = Accumulate::overwrite;
  };
  virtual void projection_norm_grad(Stream&, const ProjectionNormGrad&) = 0;
  // dw = sum (+ dw), of any one shape.  dw f32 or bf16, sum f32.
  virtual void add_gradient(Stream&, Tensor dw, Tensor sum, Accumulate) = 0;
  // out = x + scale * delta; with an empty x, scale * delta. All T of one shape; out may be x or delta.
  virtual void add_scaled(Stream&, Tensor out, Tensor x, Tensor delta, float scale) = 0;
  // out = factor (x + delta); with an empty x, factor delta. factor T [1], the others T of one shape; out may be x or
  // delta.
  virtual void scale_sum(Stream&, Tensor out, Tensor x, Tensor delta, Tensor factor) = 0;

  // out = rotate(norm(in)). Each pair of the first R dimensions of every head (RotaryPairs; pair d < R/2) turns by the
  // angle of its position; dimensions from R on pass through. table f32 [positions, 2, R/2]: cosines, then sines
  // (already scaled); positions i32 [N]. out may be in (the same rows and offset) when there is no norm. Heads may have
  // gaps between them. [RoPE, Su et al. 2021]
  virtual void rotary(Stream&, Heads out, Heads in, Tensor positions, Tensor table, HeadNorm norm,
                      RotaryPairs pairs = RotaryPairs::halves) = 0;
  struct RotaryGrad {
    Heads din, dout;   // din may be dout
    Heads in{};        // the forward input, read only with a norm
    Tensor positions;  // as in rotary()
    Tensor table;
    HeadNorm norm{};
    Tensor dweight{};  // f32 or T [head_dim], empty without a norm
    Accumulate dweight_mode = Accumulate::overwrite;
    RotaryPairs pairs = RotaryPairs::halves;
  };
  virtual void rotary_grad(Stream&, const RotaryGrad&) = 0;
  // RMS norm of each head, without a weight: out = in * inv_rms. Heads of one shape, which may have gaps between them;
  // inv_rms f32 [N, heads]. out must not be in: the backward pass reads it.
  virtual void head_norm(Stream&, Heads out, Heads in, Tensor inv_rms, float epsilon) = 0;
  struct HeadNormGrad {
    Heads din, dout;  // din may be dout, unless it is added to
    Heads in;         // the forward input
    Tensor inv_rms;
    Accumulate din_mode = Accumulate::overwrite;
  };
  virtual void head_norm_grad(Stream&, const HeadNormGrad&) = 0;
  // out = in, for laying rows into a KV cache. Heads may have gaps between them.
  virtual void copy_heads(Stream&, Heads out, Heads in) = 0;
  // Every head of `out` becomes the one head of `in`; and the gradient of that: the one head of `out` becomes the sum
  // of those of `in`, in their order in fp32, rounded once. Heads may have gaps between them.
  virtual void spread_head(Stream&, Heads out, Heads in) = 0;
  virtual void sum_heads(Stream&, Heads out, Heads in) = 0;

  // out = softmax(scale q k^T) v by document, causal. q.heads is a multiple of k.heads == v.heads (grouped queries).
  struct Attention {
    Heads out;
    // f32 [q.heads, N]: natural log of the sum of exponentials, for the backward pass. The order of its elements is the
    // backend's own affair.
    Tensor lse;
    Heads q, k, v;
    AttentionSpans spans;
    Tensor scratch{};  // u8, as OpsMemory::attention() says
  };
  virtual void attention(Stream&, const Attention&) = 0;
  struct AttentionGrad {
    Heads dq, dk, dv;  // overwritten
    Tensor dsinks{};   // f32 or T [q.heads], empty without sinks
    Accumulate dsinks_mode = Accumulate::overwrite;
    Heads dout;
    Attention forward;  // the call that this is the gradient of; its scratch is not used
    Tensor scratch{};   // u8, as OpsMemory::attention_grad() says
  };
  virtual void attention_grad(Stream&, const AttentionGrad&) = 0;

  // out = act(gate) * up, gate = gate_up[:, :F], up = gate_up[:, F:].  out T [N, F], gate_up T [N, 2F]. Without a gate
  // out = act(gate_up), gate_up T [N, F] (inputs_of()). `rows` is as in add_rms_norm().
  virtual void swiglu(Stream&, Tensor out, Tensor gate_up, MlpActivation = MlpActivation::silu,
                      Fp8Matrix rows = {}) = 0;
  // dgate_up may be gate_up. `activated`, T [N, F] or empty, receives the forward result again: backward needs it for
  // the next weight's gradient, and making it here costs one write instead of having kept it. It may be dout.
  virtual void swiglu_grad(Stream&, Tensor dgate_up, Tensor dout, Tensor gate_up, Tensor activated,
                           MlpActivation = MlpActivation::silu) = 0;
  // The same, rounded as fp8_quantise() rounds what that makes.
  struct Fp8SwigluGrad {
    Fp8Matrix rows, columns;  // of dgate_up, in blocks of rows; columns may be empty
    Fp8Matrix activated;      // columns, in squares, or empty
    Tensor dgate_up{};        // T [N, 2F], or empty; may be gate_up
    Tensor dout, gate_up;
    MlpActivation activation = MlpActivation::silu;
  };
  virtual void fp8_swiglu_grad(Stream&, const Fp8SwigluGrad&) = 0;

  // ---- Gates and the gated delta rule [Gated DeltaNet, Yang et al. 2024] ----
  // These take heads with gaps between them.

  // out = x * sigmoid(gate), T, all heads of one shape. out may be x.
  virtual void sigmoid_gate(Stream&, Heads out, Heads x, Heads gate) = 0;
  struct SigmoidGateGrad {
    Heads dx, dgate;  // dx may be dout, dgate may be gate
    Heads gated;      // receives the forward result again, or its rows are empty; may be x
    Heads dout, x, gate;
  };
  virtual void sigmoid_gate_grad(Stream&, const SigmoidGateGrad&) = 0;

  // RMS norm of each head, then a gate: out = x * inv_rms * (weight_offset + weight) * silu(gate). out, x, gate T,
  // heads of one shape; norm.inv_rms f32 [N, heads]. out must not be x: the backward pass reads it.
  virtual void gated_norm(Stream&, Heads out, Heads x, Heads gate, HeadNorm norm) = 0;
  struct GatedNormGrad {
    Heads dx, dgate;  // dx may be dout, dgate may be gate
    Heads normed;     // receives the forward result again, or its rows are empty
    Tensor dweight;   // f32 or T [head_dim]
    Accumulate dweight_mode = Accumulate::overwrite;
    Heads dout, x, gate;
    HeadNorm norm;
  };
  virtual void gated_norm_grad(Stream&, const GatedNormGrad&) = 0;

  // The other way round: a gate, then the RMS norm of each head: out = y * inv_rms * (weight_offset + weight), y = x *
  // silu(gate) in fp32. norm.weight T [heads * head_dim], a weight for each column, norm.inv_rms f32 [N, heads]. out
  // must not be x: the backward pass reads it. [the norm of Mamba2's mixer, Dao & Gu 2024]
  virtual void gate_then_norm(Stream&, Heads out, Heads x, Heads gate, HeadNorm norm) = 0;
  struct GateThenNormGrad {
    Heads dx, dgate;  // dx may be dout, dgate may be gate
    Heads normed;     // receives the forward result again, or its rows are empty
    Tensor dweight;   // f32 or T [heads * head_dim]
    Accumulate dweight_mode = Accumulate::overwrite;
    Heads dout, x, gate;
    HeadNorm norm;
  };
  virtual void gate_then_norm_grad(Stream&, const GateThenNormGrad&) = 0;

  // Causal depthwise convolution over the rows of a document, then SiLU: out[n, c] = silu(bias[c] + sum over j < K of
  // weight[c, j] * x[n - K + 1 + j, c]); rows before the document's first count as zeros. K is at most 8.
  struct CausalConv {
    Heads out, x;   // T, one head of C dimensions; out must not be x
    Tensor weight;  // T [C, 1, K]
    Tensor bias{};  // T [C] or empty
    PackedDocuments documents;
    // T [K - 1, C] or empty: the rows before the first, of a single document that is continued. They become its last.
    Tensor before{};
  };
  virtual void causal_conv(Stream&, const CausalConv&) = 0;
  struct CausalConvGrad {
    Heads dx;        // overwritten; neither dout nor x
    Tensor dweight;  // f32 or T [C, 1, K]
    Accumulate dweight_mode = Accumulate::overwrite;
    Tensor dbias{};  // f32 or T [C], empty without a bias
    Accumulate dbias_mode = Accumulate::overwrite;
    Heads dout;
    CausalConv forward;  // the call that this is the gradient of; its `out` is not used, and `before` is empty
  };
  virtual void causal_conv_grad(Stream&, const CausalConvGrad&) = 0;

  // What each head of a token forgets and learns: decay[n, h] = -exp(a_log[h]) * softplus(a[n, h] + dt_bias[h]), the
  // logarithm of what is left of the state, and rate[n, h] = sigmoid(b[n, h]).
  struct DeltaGates {
    Tensor decay, rate;     // f32 [N, H]
    Heads a, b;             // T, one head of H dimensions
    Tensor a_log, dt_bias;  // T [H]
  };
  virtual void delta_gates(Stream&, const DeltaGates&) = 0;
  struct DeltaGatesGrad {
    Heads da, db;             // da may be a, db may be b
    Tensor da_log, ddt_bias;  // f32 or T [H], both or neither
    Accumulate da_log_mode = Accumulate::overwrite, ddt_bias_mode = Accumulate::overwrite;
    Tensor ddecay, drate;  // f32 [N, H]
    DeltaGates forward;    // the call that this is the gradient of; its decay and rate are not used
  };
  virtual void delta_gates_grad(Stream&, const DeltaGatesGrad&) = 0;

  // For each value head of a document, with a state S of k_dim x v_dim in fp32, which is zero before the first row:
  // S *= exp(decay); S += k (rate (v - S^T k))^T; out = S^T q / sqrt(k_dim), where q and k are the given ones divided
  // by sqrt(sum of squares + 1e-6). v.heads is a multiple of q.heads == k.heads: value head h has key head h / (v.heads
  // / k.heads).
  struct DeltaRule {
    Heads out;           // T, as v
    Heads q, k, v;       // T
    Tensor decay, rate;  // f32 [N, v.heads], decay <= 0
    PackedDocuments documents;
    // f32 [v.heads, k_dim, v_dim] or empty: the state before the first row of a single document that is continued. It
    // becomes the one after the last.
    Tensor state{};
    Tensor scratch{};  // u8, as OpsMemory::delta_rule() says
  };
  virtual void delta_rule(Stream&, const DeltaRule&) = 0;
  struct DeltaRuleGrad {
    Heads dq, dk, dv;      // overwritten
    Tensor ddecay, drate;  // f32 [N, v.heads], overwritten; drate may be 0 where rate is
    Heads dout;            // lies elsewhere than dv
    DeltaRule forward;     // the call that this is the gradient of; its `out` and scratch are not used, state is empty
    Tensor scratch{};      // u8, as OpsMemory::delta_rule_grad() says
  };
  virtual void delta_rule_grad(Stream&, const DeltaRuleGrad&) = 0;

  // ---- State spaces [Mamba2, Dao & Gu 2024] ----
  // These take heads with gaps between them.

  // How far each head of a token moves, step[n, h] = clamp(softplus(x[n, h] + dt_bias[h]), low, high), and the
  // logarithm of what is left of the state, decay[n, h] = -exp(a_log[h]) * step[n, h].
  struct StepGates {
    Tensor decay, step;     // f32 [N, H]
    Heads x;                // T, one head of H dimensions
    Tensor a_log, dt_bias;  // T [H]
    float low = 0, high = std::numeric_limits<float>::infinity();
  };
  virtual void step_gates(Stream&, const StepGates&) = 0;
  struct StepGatesGrad {
    Heads dx;                 // may be x; 0 where the step is beyond a limit
    Tensor da_log, ddt_bias;  // f32 or T [H], both or neither
    Accumulate da_log_mode = Accumulate::overwrite, ddt_bias_mode = Accumulate::overwrite;
    Tensor ddecay, dstep;  // f32 [N, H]
    StepGates forward;     // the call that this is the gradient of; its decay and step are not used
  };
  virtual void step_gates_grad(Stream&, const StepGatesGrad&) = 0;

  // For each head of a document, with a state S of k_dim x v_dim in fp32, which is zero before the first row:
  // S = exp(decay) S + b (step x)^T; out = S^T c + skip x. x.heads is a multiple of b.heads == c.heads, the groups:
  // head h has the group h / (x.heads / b.heads).
  struct StateSpace {
    Heads out;           // T, as x
    Heads x, b, c;       // T; heads of v_dim, and of k_dim
    Tensor decay, step;  // f32 [N, x.heads], decay <= 0, step >= 0
    Tensor skip;         // T [x.heads]
    PackedDocuments documents;
    // f32 [x.heads, k_dim, v_dim] or empty: the state before the first row of a single document that is continued. It
    // becomes the one after the last.
    Tensor state{};
    Tensor scratch{};  // u8, as OpsMemory::state_space() says
  };
  virtual void state_space(Stream&, const StateSpace&) = 0;
  struct StateSpaceGrad {
    Heads dx, db, dc;      // overwritten
    Tensor ddecay, dstep;  // f32 [N, x.heads], overwritten
    Tensor dskip{};        // f32 or T [x.heads], or empty
    Accumulate dskip_mode = Accumulate::overwrite;
    Heads dout;          // lies elsewhere than dx
    StateSpace forward;  // the call that this is the gradient of; its `out` and scratch are not used, state is empty
    Tensor scratch{};    // u8, as OpsMemory::state_space_grad() says
  };
  virtual void state_space_grad(Stream&, const StateSpaceGrad&) = 0;

  // ---- Mixture of experts ----
  // Chooses each token's K experts by its logits, f32 [N, E].
  virtual void route(Stream&, const Routing& out, Tensor logits, const RouterRule&) = 0;
  // dlogits T [N, E], overwritten, from dweights f32 [R]; and, if `counts` f32 [E] is not empty, which goes with
  // softmax, of balance_scale * sum over e of counts[e] * (sum over n of softmax(logits[n])[e]), counts being
  // constants.
  virtual void route_grad(Stream&, Tensor dlogits, Tensor dweights, const Routing&, Tensor logits, const RouterRule&,
                          Tensor counts, float balance_scale) = 0;
  // counts[e] = (+) the rows of expert e; shares[e] = (+) sum over n of softmax(logits[n])[e]. Both f32 [E].
  virtual void router_load(Stream&, Tensor counts, Tensor shares, const Routing&, Tensor logits, Accumulate) = 0;
  // losses[n] += scale * sum over e of counts[e] * shares[e], where targets[n] >= 0. losses f32 [N], targets i32 [N].
  virtual void add_router_loss(Stream&, Tensor losses, Tensor targets, Tensor counts, Tensor shares, float scale) = 0;

  // out[r] = x[pairs[r] / K].  out T [R, H], x T [N, H].
  virtual void gather_rows(Stream&, Tensor out, Tensor x, const Routing&) = 0;
  // out[n] = sum over j of y[r] + weights[r] * bias[experts[n, j]], r = rows[n, j].  out T [N, H], y T [R, H], bias T
  // [E, H] or empty.
  virtual void sum_rows(Stream&, Tensor out, Tensor y, Tensor bias, const Routing&) = 0;

  // The rows of expert e through its weight w[e], T [E, O, I] or, in_out, [E, I, O].  out T [R, O], x T [R, I].
  virtual void expert_linear(Stream&, Tensor out, Tensor x, Tensor w, ExpertLayout, Tensor offsets) = 0;
  virtual void expert_linear_grad_input(Stream&, Tensor dx, Tensor dy, Tensor w, ExpertLayout, Tensor offsets) = 0;
  // dw f32 or T, shaped as w. An expert without rows has the gradient 0.
  virtual void expert_linear_grad_weight(Stream&, Tensor dw, Tensor dy, Tensor x, ExpertLayout, Tensor offsets,
                                         Accumulate) = 0;
  // dbias[e] = (+) sum over the rows of e of dy[r], or weighted, of weights[r] * dy[r].  dbias f32 or T [E, O].
  virtual void expert_bias_grad(Stream&, Tensor dbias, Tensor dy, const Routing&, bool weighted, Accumulate) = 0;
  // dweights[r] = <dout[pairs[r] / K], bias[expert of r]>: what sum_rows()'s bias means to the weights.  dout T [N, H].
  virtual void expert_bias_dot(Stream&, Tensor dweights, Tensor dout, Tensor bias, const Routing&) = 0;

  // out[r] = weights[r] * scale[expert of r].  out f32 [R], scale T [E].
  virtual void scale_experts(Stream&, Tensor out, Tensor scale, const Routing&) = 0;
  struct ScaleExpertsGrad {
    Tensor dweights;  // f32 [R]: dout[r] * scale[expert of r]; may be dout
    Tensor dscale;    // f32 or T [E]: (+) the sum over the rows of e of dout[r] * weights[r]
    Accumulate dscale_mode = Accumulate::overwrite;
    Tensor dout;  // f32 [R]
    Tensor scale;
    Routing routing;
  };
  virtual void scale_experts_grad(Stream&, const ScaleExpertsGrad&) = 0;

  // out[r] = weights[r] * act(gate_up[r] + bias[expert of r]).  out T [R, F], gate_up T [R, 2F], bias T [E, 2F] or {};
  // without a gate F in place of 2F. Without a bias the routing may have weights alone.
  virtual void expert_activation(Stream&, Tensor out, Tensor gate_up, Tensor bias, const ExpertActivation&,
                                 const Routing&) = 0;
  // The gradient of that.
  struct ExpertActivationGrad {
    Tensor dgate_up;   // T, as gate_up, which it may be
    Tensor dweights;   // f32 [R]: dweights[r] = (+) <dout[r], act(...)>
    Tensor activated;  // T [R, F], receives the forward result again; may be dout
    Tensor dout;       // T [R, F]
    Tensor gate_up;    // as in expert_activation()
    Tensor bias{};
    ExpertActivation activation;
    Routing routing;
    Accumulate dweights_mode = Accumulate::overwrite;
  };
  virtual void expert_activation_grad(Stream&, const ExpertActivationGrad&) = 0;

  // The gate of a whole row: gates[n] = sigmoid(<x[n], weight>).  gates f32 [N], x T [N, H], weight T [1, H].
  virtual void row_gate(Stream&, Tensor gates, Tensor x, Tensor weight) = 0;
  struct RowGateGrad {
    Tensor dx;       // T [N, H], added to
    Tensor dweight;  // f32 or T [1, H], or empty
    Accumulate dweight_mode = Accumulate::overwrite;
    Tensor dgates;            // f32 [N]
    Tensor gates, x, weight;  // as row_gate() read and made them
  };
  virtual void row_gate_grad(Stream&, const RowGateGrad&) = 0;

  // Output projection and cross-entropy in one go, over chunks of rows so that the logits never exist whole.
  struct LinearCrossEntropy {
    Tensor hidden;   // T [N, H]
    Tensor weight;   // T [V, H]
    Tensor targets;  // i32 [N]; negative: no loss here
    Tensor losses;   // f32 [N], written: -log softmax(hidden weight^T)[target], 0 where there is no target
    // In [0, 1]: that share of a loss is the mean over the whole vocabulary in place of the target, as in torch's
    // cross_entropy.
    float label_smoothing = 0;
    float soft_cap = 0;  // above 0, every logit is soft_cap tanh(logit / soft_cap)
    // Gradients of grad_scale * sum(losses): none, that of hidden, or those of hidden and weight; the others are empty.
    Tensor dhidden;  // T [N, H], overwritten
    Tensor dweight;  // f32 or T [V, H]
    Accumulate dweight_mode = Accumulate::overwrite;
    float grad_scale = 0;
    Tensor workspace;  // logits_dtype(T) [C, logits_stride(V)]: C rows are done at a time
    // Both or neither: the rows that have a target, i32 [M], ascending, and room to gather them in, T [N, H]. Masked
    // rows then cost nothing on a GPU; the CPU finds them by itself.
    Tensor rows, gathered;
  };
  virtual void linear_cross_entropy(Stream&, const LinearCrossEntropy&) = 0;
  // logits = cap tanh(logits / cap), f32 [N, V].
  virtual void soft_cap(Stream&, Tensor logits, float cap) = 0;

  // out[i], f32 or bf16, drawn from a normal distribution with mean 0 and this standard deviation, a function of seed
  // and i alone. For models with random weights: no two elements depend on each other, no host memory is needed.
  virtual void random_normal(Stream&, Tensor out, std::uint64_t seed, float standard_deviation) = 0;

 protected:
  // `memory` outlives this.
  explicit Ops(const OpsMemory& memory) : memory_(memory) {}

 private:
  const OpsMemory& memory_;
};

// The backend for the device; for a dry one, ops that do nothing and need the memory its kind would. A backend may keep
// scratch of its own, booked on the device, so all calls of one Ops go to one stream.
std::unique_ptr<Ops> make_ops(Device& device);

}  // namespace so
