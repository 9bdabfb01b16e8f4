#include "commands/bench/bench_ops_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "commands/bench/bench_delta_cases.h"
#include "commands/bench/bench_ops_fp8.h"
#include "commands/bench/bench_state_space_cases.h"
#include "commands/bench/random_model.h"
#include "model/flops.h"
#include "model/rope.h"
#include "plan/memory/activation_memory.h"
#include "plan/training_plan.h"

namespace so {
namespace {

// All operations of a model's layer, embedding and head at these sizes.
class LayerCases final : public Cases {
 public:
  LayerCases(const DecoderSpec& spec, std::int64_t tokens, std::int64_t longest, DType dtype, const Backend& backend,
             const Ops& ops, EngineOps& engine_ops, DeviceAdamW& adamw)
      : s_(spec),
        n_(tokens),
        t_(dtype),
        backend_(backend),
        ops_(ops),
        engine_ops_(engine_ops),
        adamw_(adamw),
        positions_of_table_(std::min(longest, tokens)),
        batch_(documents_of(spec, tokens, longest)) {
    for (std::size_t d = 1; d < batch_.cu_seqlens.size(); ++d)
      longest_ = std::max<std::int64_t>(longest_, batch_.cu_seqlens[d] - batch_.cu_seqlens[d - 1]);
    embedding();
    norms();
    if (!s_.input_norms || s_.residual_scale != 1 || s_.embedding_scale != 1) add_scaled();
    attention_layers();
    if (s_.has_delta()) {
      add_delta_cases(cases_, {s_.delta, n_, batch_.cu_seqlens, longest_, t_, ops_.memory()});
      linear("delta projections", s_.hidden, s_.delta.projected_width());
      linear("delta out", s_.delta.v_width(), s_.hidden);
    }
    if (s_.has_state_space()) {
      add_state_space_cases(cases_, {s_.state_space, n_, batch_.cu_seqlens, t_, ops_.memory()});
      linear("space in", s_.hidden, s_.state_space.projected_width());
      linear("space out", s_.state_space.width(), s_.hidden);
    }
    if (s_.dense_layers() > 0) {
      activation();
      linear("gate_up", s_.hidden, inputs_of(s_.gate) * s_.intermediate);
      linear("down", s_.intermediate, s_.hidden);
    }
    if (s_.expert_layers() > 0) {
      experts("gate_up", s_.hidden, inputs_of(s_.experts.activation) * s_.experts.intermediate);
      experts("down", s_.experts.intermediate, s_.hidden);
    }
    cross_entropy();
    gradients();
  }

 private:
  struct Kind {
    AttentionShape shape;
    float scale = 0;
    std::int64_t rotary_dim = 0;
    RotaryPairs pairs;
    std::vector<float> table;
  };

  static MicroBatch documents_of(const DecoderSpec& spec, std::int64_t tokens, std::int64_t longest) {
    const std::int64_t whole = tokens / longest, rest = tokens % longest;
    MicroBatch batch = random_batch(spec, 1, tokens, 1);
    batch.cu_seqlens = {0};
    for (std::int64_t d = 0; d < whole; ++d) batch.cu_seqlens.push_back(static_cast<std::int32_t>((d + 1) * longest));
    if (rest > 0) batch.cu_seqlens.push_back(static_cast<std::int32_t>(tokens));
    for (std::int64_t i = 0; i < tokens; ++i)
      batch.positions[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i % longest);
    return batch;
  }

  // Bytes of `elements` elements of T.
  double of_t(std::int64_t elements) const { return static_cast<double>(elements) * static_cast<double>(size_of(t_)); }
  void add(std::string name, std::string shape, double bytes, double flops, std::function<Call(Tensors&)> make) {
    cases_.push_back({std::move(name), std::move(shape), bytes, flops, std::move(make)});
  }
  AttentionSpans spans(Tensors& m, float scale) const {
    AttentionSpans spans;
    spans.cu_q = spans.cu_k = m.integers(batch_.cu_seqlens);
    spans.starts = batch_.cu_seqlens;
    spans.documents = batch_.documents();
    spans.max_q = spans.max_k = longest_;
    spans.scale = scale;
    return spans;
  }

  void embedding() {
    const std::string shape = fmt::format("{} of {} x {}", n_, s_.vocab, s_.hidden);
    add("embedding", shape, of_t(2 * n_ * s_.hidden), 0, [this](Tensors& m) {
      const Tensor out = m.random(t_, {n_, s_.hidden}), table = m.random(t_, {s_.vocab, s_.hidden});
      const Tensor ids = m.integers(batch_.ids);
      return Call{[=](Ops& ops, Stream& stream) { ops.embedding(stream, out, table, ids); }};
    });
    // Tied, the gradient of the projection is there already; else the table is cleared first.
    const Accumulate mode = s_.tied_embeddings ? Accumulate::add : Accumulate::overwrite;
    const double bytes = of_t(3 * n_ * s_.hidden) + (mode == Accumulate::overwrite ? of_t(s_.vocab * s_.hidden) : 0.0);
    add("embedding_grad", shape, bytes, 0, [this, mode](Tensors& m) {
      const Tensor dtable = m.random(t_, {s_.vocab, s_.hidden}), dout = m.random(t_, {n_, s_.hidden});
      const Tensor ids = m.integers(batch_.ids);
      return Call{[=](Ops& ops, Stream& stream) { ops.embedding_grad(stream, dtable, dout, ids, mode); }};
    });
  }

  void norms() {
    const std::string shape = fmt::format("{} x {}", n_, s_.hidden);
    const NormTerms terms{s_.rms_epsilon, s_.norm_offset, static_cast<float>(s_.residual_scale)};
    add("add_rms_norm", shape, of_t(4 * n_ * s_.hidden), 0, [this, terms](Tensors& m) {
      const Tensor out = m.random(t_, {n_, s_.hidden}), sum = m.random(t_, {n_, s_.hidden});
      const Tensor x = m.random(t_, {n_, s_.hidden}), delta = m.random(t_, {n_, s_.hidden});
      const Tensor weight = m.random(t_, {s_.hidden}), inv_rms = m.random(DType::f32, {n_});
      return Call{
          [=](Ops& ops, Stream& stream) { ops.add_rms_norm(stream, out, sum, inv_rms, x, delta, weight, terms); }};
    });
    add("rms_norm_grad", shape, of_t(4 * n_ * s_.hidden), 0, [this](Tensors& m) {
      const Tensor dx = m.random(t_, {n_, s_.hidden}), dout = m.random(t_, {n_, s_.hidden});
      const Tensor residual = m.random(t_, {n_, s_.hidden}), x = m.random(t_, {n_, s_.hidden});
      const Tensor weight = m.random(t_, {s_.hidden}), dweight = m.random(t_, {s_.hidden});
      const Tensor inv_rms = m.random(DType::f32, {n_});
      return Call{[=](Ops& ops, Stream& stream) {
        ops.rms_norm_grad(stream, {.dx = dx,
                                   .dweight = dweight,
                                   .dout = dout,
                                   .residual = residual,
                                   .x = x,
                                   .inv_rms = inv_rms,
                                   .weight = weight});
      }};
    });
  }

  // Sums that no norm makes, and scaled copies.
  void add_scaled() {
    add("add_scaled", fmt::format("{} x {}", n_, s_.hidden), of_t(3 * n_ * s_.hidden), 0, [this](Tensors& m) {
      const Tensor out = m.random(t_, {n_, s_.hidden}), x = m.random(t_, {n_, s_.hidden});
      const Tensor delta = m.random(t_, {n_, s_.hidden});
      return Call{[=](Ops& ops, Stream& stream) { ops.add_scaled(stream, out, x, delta, 0.5f); }};
    });
  }

  // A layer for each kind of heads in the model.
  void attention_layers() {
    std::set<std::pair<std::int64_t, std::int64_t>> seen;
    for (std::int64_t layer = 0; layer < s_.layers; ++layer) {
      const AttentionShape a = s_.shape(layer);
      if (!s_.attends(layer) || !seen.insert({a.head_dim, a.kv_heads}).second) continue;
      const RopeSpec& rope = s_.layer(layer).rotation == LayerRotation::local ? *s_.local_rope : s_.rope;
      kinds_.push_back({a, s_.score_scale(layer), rope.rotary_dim, rope.pairs, rope_table(rope, positions_of_table_)});
      const Kind& kind = kinds_.back();
      if (s_.projection_norm) {
        projection_norm(a, "q", 0, a.heads);
        projection_norm(a, "k", a.q_width(), a.kv_heads);
      }
      if (s_.layer(layer).rotation != LayerRotation::none) {
        heads(kind, "q", 0, a.heads);
        heads(kind, "k", a.q_width(), a.kv_heads);
      }
      attention(kind);
      if (s_.is_latent(layer)) {
        const LatentSpec& l = s_.latent;
        linear("latents", s_.hidden, l.projected_width());
        linear("queries of latents", l.q_rank, a.q_width());
        linear("keys and values of latents", l.kv_rank, a.heads * (l.still_dim + l.v_dim));
      } else {
        linear("qkv", s_.hidden, a.qkv_width());
      }
      linear("o", a.q_width(), s_.hidden);
      if (s_.qkv_bias) bias("qkv", a.qkv_width());
    }
  }

  // The norm of all heads of a row as one, in rows as wide as the decoder's.
  void projection_norm(const AttentionShape& a, const std::string& which, std::int64_t offset, std::int64_t heads) {
    const std::string shape = fmt::format("{} x {}", n_, heads * a.head_dim);
    const std::int64_t width = a.q_width() + a.kv_width(), elements = n_ * heads * a.head_dim;
    const auto norm_of = [=, this](Tensors& m) {
      return HeadNorm{m.random(t_, {heads * a.head_dim}), s_.rms_epsilon, m.random(DType::f32, {n_}), s_.norm_offset};
    };
    add("projection_norm " + which, shape, of_t(2 * elements), 0, [=, this](Tensors& m) {
      const Heads in{m.random(t_, {n_, a.qkv_width()}), offset, heads, a.head_dim};
      const Heads out{m.random(t_, {n_, width}), offset, heads, a.head_dim};
      const HeadNorm norm = norm_of(m);
      return Call{[=](Ops& ops, Stream& stream) { ops.projection_norm(stream, out, in, norm); }};
    });
    add("projection_norm_grad " + which, shape, of_t(3 * elements), 0, [=, this](Tensors& m) {
      const Heads in{m.random(t_, {n_, a.qkv_width()}), offset, heads, a.head_dim};
      const Heads d{m.random(t_, {n_, a.qkv_width()}), offset, heads, a.head_dim};
      const HeadNorm norm = norm_of(m);
      const Tensor dweight = m.random(t_, {heads * a.head_dim});
      return Call{[=](Ops& ops, Stream& stream) {
        ops.projection_norm_grad(stream, {.din = d, .dout = d, .in = in, .norm = norm, .dweight = dweight});
      }};
    });
  }

  // Rotation, with the norm before it where the model has one, in rows as wide as the decoder's.
  void heads(const Kind& kind, const std::string& which, std::int64_t offset, std::int64_t heads) {
    const AttentionShape a = kind.shape;
    const RotaryPairs pairs = kind.pairs;
    const bool normed = s_.qk_norm;
    const std::string shape = fmt::format("{} x {} heads of {}{}", n_, heads, a.head_dim, normed ? ", normed" : "");
    const std::int64_t elements = n_ * heads * a.head_dim, width = normed ? a.rotated_width() : a.qkv_width();
    const float epsilon = s_.rms_epsilon;
    const auto table_of = [this, &kind](Tensors& m) {
      return m.floats(kind.table, {positions_of_table_, 2, kind.rotary_dim / 2});
    };
    const auto norm_of = [=, this](Tensors& m) {
      if (!normed) return HeadNorm{};
      return HeadNorm{m.random(t_, {a.head_dim}), epsilon, m.random(DType::f32, {n_, heads}), s_.norm_offset};
    };
    add("rotary " + which, shape, of_t(2 * elements), 0, [=, this](Tensors& m) {
      const Tensor rows = m.random(t_, {n_, a.qkv_width()});
      const Heads in{rows, offset, heads, a.head_dim};
      const Heads out{normed ? m.random(t_, {n_, width}) : rows, offset, heads, a.head_dim};
      const Tensor positions = m.integers(batch_.positions), table = table_of(m);
      const HeadNorm norm = norm_of(m);
      return Call{[=](Ops& ops, Stream& stream) { ops.rotary(stream, out, in, positions, table, norm, pairs); }};
    });
    add("rotary_grad " + which, shape, of_t((normed ? 3 : 2) * elements), 0, [=, this](Tensors& m) {
      const Heads in{m.random(t_, {n_, a.qkv_width()}), offset, heads, a.head_dim};
      const Heads d{m.random(t_, {n_, a.qkv_width()}), offset, heads, a.head_dim};
      const Tensor positions = m.integers(batch_.positions), table = table_of(m);
      const HeadNorm norm = norm_of(m);
      const Tensor dweight = normed ? m.random(t_, {a.head_dim}) : Tensor();
      return Call{[=](Ops& ops, Stream& stream) {
        Ops::RotaryGrad grad{
            .din = d, .dout = d, .in = in, .positions = positions, .table = table, .norm = norm, .dweight = dweight};
        grad.pairs = pairs;
        ops.rotary_grad(stream, grad);
      }};
    });
  }

  // Two products of query and key pairs forward; backward has five, since the scores are made again. Layers differ in
  // their windows; what a query does not see is not counted.
  void attention(const Kind& kind) {
    std::set<std::int64_t> windows;
    for (std::int64_t layer = 0; layer < s_.layers; ++layer)
      if (const AttentionShape a = s_.shape(layer);
          a.head_dim == kind.shape.head_dim && a.kv_heads == kind.shape.kv_heads)
        windows.insert(s_.layer(layer).window);
    for (const std::int64_t window : windows) attention(kind, window);
  }

  void attention(const Kind& kind, std::int64_t window) {
    const AttentionShape a = kind.shape;
    const float scale = kind.scale;
    const std::int64_t width = a.value_norm ? a.rotated_width() : a.qkv_width();
    const std::string shape =
        fmt::format("{} documents of {}, {} / {} heads of {}{}{}", batch_.documents(), longest_, a.heads, a.kv_heads,
                    a.head_dim, window > 0 ? fmt::format(", window {}", window) : "", s_.sinks ? ", sinks" : "");
    const AttentionSize documents{n_,       n_, a.heads, a.kv_heads, a.head_dim, batch_.documents(),
                                  longest_, t_, window,  s_.sinks};
    const double product = 2 * static_cast<double>(a.q_width()) * attention_pairs(batch_.cu_seqlens, window);
    struct Way {
      const char* name;
      bool backward, any_order;
    };
    for (const Way& way : {Way{"attention", false, false}, Way{"attention_grad", true, false},
                           Way{"attention_grad, any order", true, true}}) {
      const bool backward = way.backward;
      AttentionSize size = documents;
      size.any_order = way.any_order;
      add(way.name, shape, 0, (backward ? 5 : 2) * product, [=, this](Tensors& m) {
        const Tensor qkv = m.random(t_, {n_, width});
        const Heads q{qkv, 0, a.heads, a.head_dim}, k{qkv, a.q_width(), a.kv_heads, a.head_dim},
            v{qkv, a.q_width() + a.kv_width(), a.kv_heads, a.head_dim};
        const Heads out{m.random(t_, {n_, a.q_width()}), 0, a.heads, a.head_dim};
        const Tensor lse = m.random(DType::f32, {a.heads, n_});
        AttentionSpans spans = this->spans(m, scale);
        spans.window = window;
        spans.any_order = size.any_order;
        if (s_.sinks) spans.sinks = m.random(t_, {a.heads});
        const Tensor scratch = m.scratch(ops_.memory().attention(size));
        const auto forward = [=](Ops& ops, Stream& stream) {
          ops.attention(stream, {.out = out, .lse = lse, .q = q, .k = k, .v = v, .spans = spans, .scratch = scratch});
        };
        if (!backward) return Call{forward};
        const Tensor dqkv = m.random(t_, {n_, width});
        const Heads dq{dqkv, 0, a.heads, a.head_dim}, dk{dqkv, a.q_width(), a.kv_heads, a.head_dim},
            dv{dqkv, a.q_width() + a.kv_width(), a.kv_heads, a.head_dim};
        const Heads dout{m.random(t_, {n_, a.q_width()}), 0, a.heads, a.head_dim};
        const Tensor dsinks = s_.sinks ? m.random(t_, {a.heads}) : Tensor();
        // With long documents the most would be more than devices have.
        constexpr std::size_t much = std::size_t{40} << 30;
        const std::size_t most = ops_.memory().attention_grad_most(size);
        const Tensor grad_scratch = m.scratch(most <= much ? most : ops_.memory().attention_grad(size));
        return Call{[=](Ops& ops, Stream& stream) {
                      ops.attention_grad(stream,
                                         {.dq = dq,
                                          .dk = dk,
                                          .dv = dv,
                                          .dsinks = dsinks,
                                          .dout = dout,
                                          .forward = {.out = out, .lse = lse, .q = q, .k = k, .v = v, .spans = spans},
                                          .scratch = grad_scratch});
                    },
                    forward};
      });
    }
  }

  void activation() {
    const std::int64_t f = s_.intermediate, inputs = inputs_of(s_.gate);
    const MlpActivation gate = s_.gate;
    const std::string shape = fmt::format("{} x {}", n_, f);
    add("swiglu", shape, of_t((inputs + 1) * n_ * f), 0, [=, this](Tensors& m) {
      const Tensor out = m.random(t_, {n_, f}), gate_up = m.random(t_, {n_, inputs * f});
      return Call{[=](Ops& ops, Stream& stream) { ops.swiglu(stream, out, gate_up, gate); }};
    });
    for (const bool again : {false, true})
      add(again ? "swiglu_grad, activated" : "swiglu_grad", shape, of_t((2 * inputs + (again ? 2 : 1)) * n_ * f), 0,
          [=, this](Tensors& m) {
            const Tensor dgate_up = m.random(t_, {n_, inputs * f}), gate_up = m.random(t_, {n_, inputs * f});
            const Tensor dout = m.random(t_, {n_, f}), activated = again ? m.random(t_, {n_, f}) : Tensor();
            return Call{
                [=](Ops& ops, Stream& stream) { ops.swiglu_grad(stream, dgate_up, dout, gate_up, activated, gate); }};
          });
    if (!s_.has_fp8() || s_.hidden % fp8_block != 0 || f % fp8_block != 0) return;
    for (Case& fp8 : fp8_operand_cases(n_, s_.hidden, f, gate, t_)) cases_.push_back(std::move(fp8));
  }

  void linear(const std::string& which, std::int64_t in, std::int64_t out) {
    const std::string shape = fmt::format("{} x {} x {}", n_, in, out);
    const double flops = 2 * static_cast<double>(n_) * static_cast<double>(in) * static_cast<double>(out);
    add("linear " + which, shape, 0, flops, [=, this](Tensors& m) {
      const Tensor y = m.random(t_, {n_, out}), x = m.random(t_, {n_, in}), w = m.random(t_, {out, in});
      return Call{[=](Ops& ops, Stream& stream) { ops.linear(stream, y, x, w, Tensor(), Accumulate::overwrite); }};
    });
    add("linear_grad_input " + which, shape, 0, flops, [=, this](Tensors& m) {
      const Tensor dy = m.random(t_, {n_, out}), dx = m.random(t_, {n_, in}), w = m.random(t_, {out, in});
      return Call{[=](Ops& ops, Stream& stream) { ops.linear_grad_input(stream, dx, dy, w, Accumulate::overwrite); }};
    });
    add("linear_grad_weight " + which, shape, 0, flops, [=, this](Tensors& m) {
      const Tensor dy = m.random(t_, {n_, out}), x = m.random(t_, {n_, in}), dw = m.random(t_, {out, in});
      return Call{[=](Ops& ops, Stream& stream) { ops.linear_grad_weight(stream, dw, dy, x, Accumulate::overwrite); }};
    });
    if (!s_.has_fp8() || in % fp8_block != 0 || out % fp8_block != 0) return;
    for (Case& fp8 : fp8_cases(which, n_, in, out, t_)) cases_.push_back(std::move(fp8));
  }

  // The rows are spread evenly over the experts.
  void experts(const std::string& which, std::int64_t in, std::int64_t out) {
    const ExpertLayout layout = s_.experts.layout;
    const std::int64_t count = s_.experts.count, rows = n_ * s_.experts.per_token;
    if (expert_offsets_.empty())
      for (std::int64_t e = 0; e <= count; ++e) expert_offsets_.push_back(static_cast<std::int32_t>(rows * e / count));
    const std::string shape = fmt::format("{} of {} experts x {} x {}", rows, count, in, out);
    const double flops = 2 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
    const auto weight = [=, this](Tensors& m) {
      return layout == ExpertLayout::out_in ? m.random(t_, {count, out, in}) : m.random(t_, {count, in, out});
    };
    add("expert_linear " + which, shape, 0, flops, [=, this](Tensors& m) {
      const Tensor y = m.random(t_, {rows, out}), x = m.random(t_, {rows, in}), w = weight(m);
      const Tensor offsets = m.integers(expert_offsets_);
      return Call{[=](Ops& ops, Stream& stream) { ops.expert_linear(stream, y, x, w, layout, offsets); }};
    });
    add("expert_linear_grad_input " + which, shape, 0, flops, [=, this](Tensors& m) {
      const Tensor dy = m.random(t_, {rows, out}), dx = m.random(t_, {rows, in}), w = weight(m);
      const Tensor offsets = m.integers(expert_offsets_);
      return Call{[=](Ops& ops, Stream& stream) { ops.expert_linear_grad_input(stream, dx, dy, w, layout, offsets); }};
    });
    add("expert_linear_grad_weight " + which, shape, 0, flops, [=, this](Tensors& m) {
      const Tensor dy = m.random(t_, {rows, out}), x = m.random(t_, {rows, in}), dw = weight(m);
      const Tensor offsets = m.integers(expert_offsets_);
      return Call{[=](Ops& ops, Stream& stream) {
        ops.expert_linear_grad_weight(stream, dw, dy, x, layout, offsets, Accumulate::overwrite);
      }};
    });
  }

  void bias(const std::string& which, std::int64_t out) {
    add("linear_grad_bias " + which, fmt::format("{} x {}", n_, out), of_t(n_ * out), 0, [=, this](Tensors& m) {
      const Tensor dy = m.random(t_, {n_, out}), db = m.random(t_, {out});
      return Call{[=](Ops& ops, Stream& stream) { ops.linear_grad_bias(stream, db, dy, Accumulate::overwrite); }};
    });
  }

  // Forward and backward: three products of tokens, hidden and vocabulary.
  void cross_entropy() {
    const double product = 2 * static_cast<double>(n_) * static_cast<double>(s_.hidden) * static_cast<double>(s_.vocab);
    add("linear_cross_entropy", fmt::format("{} x {} x {}", n_, s_.hidden, s_.vocab), 0, 3 * product,
        [this](Tensors& m) {
          Ops::LinearCrossEntropy args;
          args.hidden = m.random(t_, {n_, s_.hidden});
          args.weight = m.random(t_, {s_.vocab, s_.hidden});
          args.targets = m.integers(batch_.targets);
          args.losses = m.random(DType::f32, {n_});
          args.dhidden = m.random(t_, {n_, s_.hidden});
          args.dweight = m.random(t_, {s_.vocab, s_.hidden});
          args.grad_scale = 1.0f / static_cast<float>(n_);
          args.workspace =
              m.random(ops_.memory().logits_dtype(t_),
                       {std::min(n_, choose_loss_chunk(backend_, s_.vocab)), ops_.memory().logits_stride(s_.vocab)});
          return Call{[=](Ops& ops, Stream& stream) { ops.linear_cross_entropy(stream, args); }};
        });
  }

  void gradients() {
    const std::int64_t elements = s_.hidden * 2 * s_.intermediate;
    add("grad_stats", fmt::format("{} elements", elements), of_t(elements), 0, [=, this](Tensors& m) {
      const Tensor grad = m.random(t_, {elements}), out = m.scratch(sizeof(GradStats));
      const Tensor scratch = m.scratch(EngineOps::stats_scratch(elements));
      return Call{[=, this](Ops&, Stream& stream) {
        engine_ops_.grad_stats(stream, static_cast<GradStats*>(out.data()), grad, scratch);
      }};
    });
    add("cast fp32 to bf16", fmt::format("{} elements", elements), 6 * static_cast<double>(elements), 0,
        [=, this](Tensors& m) {
          const Tensor from = m.random(DType::f32, {elements}), to = m.random(DType::bf16, {elements});
          return Call{[=, this](Ops&, Stream& stream) { engine_ops_.cast(stream, to, from); }};
        });
    // fp32 weight and moments in and out, gradient in, weight out.
    add("AdamW", fmt::format("{} elements", elements), 24 * static_cast<double>(elements) + of_t(2 * elements), 0,
        [=, this](Tensors& m) {
          const AdamWStep step = make_adamw_step({}, 1e-6, 0.01, 10);
          const Tensor gradient = m.random(t_, {elements}), weights = m.random(t_, {elements});
          const auto array = [&](Tensor tensor) { return static_cast<float*>(tensor.data()); };
          const AdamWState state{array(m.random(DType::f32, {elements})), array(m.zeros(DType::f32, {elements})),
                                 array(m.zeros(DType::f32, {elements}))};
          return Call{[=, this](Ops&, Stream& stream) {
            const AdamWRun all{0, elements, true};
            adamw_.update(stream, step, {&all, 1}, gradient, state, weights);
          }};
        });
  }

  const DecoderSpec s_;
  const std::int64_t n_;
  const DType t_;
  const Backend& backend_;
  const Ops& ops_;
  EngineOps& engine_ops_;
  DeviceAdamW& adamw_;
  std::deque<Kind> kinds_;  // of attention: cases refer to them
  const std::int64_t positions_of_table_;
  const MicroBatch batch_;
  std::int64_t longest_ = 0;
  std::vector<std::int32_t> expert_offsets_;
};

}  // namespace

std::unique_ptr<Cases> make_cases(const DecoderSpec& spec, std::int64_t tokens, std::int64_t longest, DType dtype,
                                  const Backend& backend, const Ops& ops, EngineOps& engine_ops, DeviceAdamW& adamw) {
  return std::make_unique<LayerCases>(spec, tokens, longest, dtype, backend, ops, engine_ops, adamw);
}

}  // namespace so
