#include "ops/cuda/attention_cudnn.h"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "ops/cudnn_workspace.h"

// Without its JSON library, which only saving graphs needs.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace so {
namespace {

namespace fe = cudnn_frontend;
using Attributes = fe::graph::Tensor_attributes;
using TensorHandle = std::shared_ptr<Attributes>;

// Numbers of a graph's tensors: data, offsets, lengths.
std::int64_t data_id(SdpaTensor t) { return 1 + static_cast<std::int64_t>(t); }
std::int64_t offsets_id(SdpaTensor t) { return 101 + static_cast<std::int64_t>(t); }
constexpr std::int64_t lengths_q_id = 201, lengths_k_id = 202, sinks_id = 203;

constexpr const char* names[sdpa_tensors] = {"q", "k", "v", "out", "dout", "dq", "dk", "dv", "stats"};

void check_cudnn(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) fail("cuDNN: {} failed: {}", call, cudnnGetErrorString(status));
}

// Returns what cuDNN has against a graph, empty if nothing.
std::string refusal(fe::error_t error, const SdpaShape& shape, const char* what) {
  if (error.is_good()) return {};
  std::string words = error.get_message();
  std::replace(words.begin(), words.end(), '\n', ' ');
  return fmt::format("cuDNN {} does not {} {}: {}", cudnnGetVersion(), what, shape.description(), words);
}

// Builds the graph of one shape.
class Builder {
 public:
  Builder(fe::graph::Graph& graph, const SdpaShape& shape) : graph_(graph), s_(shape) {
    graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (!s_.ragged) return;
    lengths_q_ = lengths("lengths_q", lengths_q_id);
    lengths_k_ = lengths("lengths_k", lengths_k_id);
  }

  void forward() {
    auto attributes = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
    describe(attributes);
    if (s_.sinks)
      attributes.set_sink_token(graph_.tensor(Attributes()
                                                  .set_name("sinks")
                                                  .set_uid(sinks_id)
                                                  .set_dim({1, s_.heads, 1, 1})
                                                  .set_stride({s_.heads, 1, 1, 1})
                                                  .set_data_type(fe::DataType_t::FLOAT)));
    const TensorHandle q = input(SdpaTensor::q, s_.heads, s_.q_width),
                       k = input(SdpaTensor::k, s_.kv_heads, s_.k_width),
                       v = input(SdpaTensor::v, s_.kv_heads, s_.v_width);
    const auto [out, stats] = graph_.sdpa(q, k, v, attributes);
    output(out, SdpaTensor::out, s_.heads, s_.out_width);
    describe_stats(*stats);
    stats->set_output(true);
  }

  void backward() {
    auto attributes = fe::graph::SDPA_backward_attributes()
                          .set_name("attention gradient")
                          .set_deterministic_algorithm(s_.deterministic);
    describe(attributes);
    const TensorHandle q = input(SdpaTensor::q, s_.heads, s_.q_width),
                       k = input(SdpaTensor::k, s_.kv_heads, s_.k_width),
                       v = input(SdpaTensor::v, s_.kv_heads, s_.v_width),
                       out = input(SdpaTensor::out, s_.heads, s_.out_width),
                       dout = input(SdpaTensor::dout, s_.heads, s_.dout_width);
    Attributes stats;
    describe_stats(stats);
    const auto [dq, dk, dv] = graph_.sdpa_backward(q, k, v, out, dout, graph_.tensor(stats), attributes);
    output(dq, SdpaTensor::dq, s_.heads, s_.dq_width);
    output(dk, SdpaTensor::dk, s_.kv_heads, s_.dk_width);
    output(dv, SdpaTensor::dv, s_.kv_heads, s_.dv_width);
  }

 private:
  template <class A>
  void describe(A& attributes) const {
    attributes.set_attn_scale(std::bit_cast<float>(s_.scale_bits)).set_causal_mask(s_.causal);
    // The band keeps column + bound > row: the bound counts the diagonal, as the window does.
    if (s_.window > 0) attributes.set_diagonal_band_left_bound(static_cast<int>(s_.window));
    if (s_.ragged) attributes.set_padding_mask(true).set_seq_len_q(lengths_q_).set_seq_len_kv(lengths_k_);
  }
  TensorHandle lengths(const char* name, std::int64_t id) {
    return graph_.tensor(Attributes()
                             .set_name(name)
                             .set_uid(id)
                             .set_dim({s_.batch, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(fe::DataType_t::INT32));
  }
  TensorHandle offsets(SdpaTensor t) {
    return graph_.tensor(Attributes()
                             .set_name(std::string("offsets_") + names[static_cast<int>(t)])
                             .set_uid(offsets_id(t))
                             .set_dim({s_.batch + 1, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(fe::DataType_t::INT64));
  }
  void describe(Attributes& a, SdpaTensor t, std::int64_t heads, std::int64_t width) {
    a.set_name(names[static_cast<int>(t)])
        .set_uid(data_id(t))
        .set_dim({s_.batch, heads, s_.rows(t), s_.head_dim})
        .set_stride({s_.rows(t) * width, s_.head_dim, width, 1});
    if (s_.ragged) a.set_ragged_offset(offsets(t));
  }
  TensorHandle input(SdpaTensor t, std::int64_t heads, std::int64_t width) {
    Attributes a;
    describe(a, t, heads, width);
    return graph_.tensor(a);
  }
  void output(const TensorHandle& tensor, SdpaTensor t, std::int64_t heads, std::int64_t width) {
    tensor->set_output(true);
    describe(*tensor, t, heads, width);
  }
  // The log-sum-exp, of which a graph may take a part of the heads.
  void describe_stats(Attributes& a) {
    a.set_name("stats")
        .set_uid(data_id(SdpaTensor::stats))
        .set_dim({s_.batch, s_.heads, s_.length, 1})
        .set_data_type(fe::DataType_t::FLOAT);
    if (s_.ragged)
      a.set_stride({s_.stats_heads * s_.length, 1, s_.stats_heads, 1}).set_ragged_offset(offsets(SdpaTensor::stats));
    else
      a.set_stride({s_.stats_heads * s_.length, s_.length, 1, 1});
  }

  fe::graph::Graph& graph_;
  const SdpaShape& s_;
  TensorHandle lengths_q_, lengths_k_;
};

}  // namespace

std::int64_t SdpaShape::width(SdpaTensor t) const {
  const std::int64_t widths[sdpa_tensors] = {q_width,  k_width,  v_width,  out_width,  dout_width,
                                             dq_width, dk_width, dv_width, stats_heads};
  return widths[static_cast<int>(t)];
}

std::string SdpaShape::description() const {
  return fmt::format("{} attention{} of {}x{}{} bf16, {} heads of {} on {} key heads{}{}{}",
                     ragged ? "ragged" : "dense", backward ? " gradient" : "", batch, length,
                     causal ? "" : fmt::format(" on {} keys", key_length), heads, head_dim, kv_heads,
                     window > 0 ? fmt::format(", window {}", window) : "", sinks ? ", sinks" : "",
                     backward && deterministic ? ", deterministic" : "");
}

struct CudnnSdpa::Graph {
  fe::graph::Graph graph;
  std::size_t workspace = 0;
  std::string refusal;  // why it cannot run; empty if it can
  bool told = false;    // the user
};

CudnnSdpa::CudnnSdpa() = default;
CudnnSdpa::~CudnnSdpa() {
  graphs_.clear();
  if (handle_) cudnnDestroy(handle_);
}

// Forward 256 bytes were measured, ragged some per document. Backward the formula is exact but for the allowance.
std::size_t CudnnSdpa::workspace(const SdpaShape& s) {
  const std::int64_t tensors =
      s.backward
          ? cudnn_gradient_bytes({s.batch, s.heads, s.kv_heads, s.head_dim, s.length, s.key_length, s.deterministic})
          : 0;
  return static_cast<std::size_t>(cudnn_allowance(s.batch) + tensors);
}

CudnnSdpa::Graph& CudnnSdpa::graph(const SdpaShape& shape) {
  if (!handle_) check_cudnn(cudnnCreate(&handle_), "cudnnCreate");
  std::unique_ptr<Graph>& slot = graphs_[shape];
  if (slot) return *slot;
  auto made = std::make_unique<Graph>();
  Builder builder(made->graph, shape);
  if (shape.backward)
    builder.backward();
  else
    builder.forward();
  std::int64_t bytes = 0;
  const auto step = [&](const char* what, auto&& make) {
    if (made->refusal.empty()) made->refusal = refusal(make(made->graph), shape, what);
  };
  step("take", [](auto& g) { return g.validate(); });
  step("take", [&](auto& g) { return g.build_operation_graph(handle_); });
  step("plan", [](auto& g) { return g.create_execution_plans({fe::HeurMode_t::A}); });
  step("support", [](auto& g) { return g.check_support(); });
  step("build", [](auto& g) { return g.build_plans(); });
  step("size", [&](auto& g) { return g.get_workspace_size(bytes); });
  made->workspace = static_cast<std::size_t>(bytes);
  slot = std::move(made);
  return *slot;
}

bool CudnnSdpa::takes(const SdpaShape& shape) {
  if (shape.sinks && cudnnGetVersion() < 91800) return false;  // before, ragged sinks are not supported, nor refused
  Graph& g = graph(shape);
  if (g.refusal.empty() && g.workspace > workspace(shape))
    g.refusal = fmt::format("cuDNN {} needs {} bytes of workspace for {}, more than planned", cudnnGetVersion(),
                            g.workspace, shape.description());
  if (g.refusal.empty()) return true;
  if (!std::exchange(g.told, true)) log_info("{}; attention goes another way", g.refusal);
  return false;
}

void CudnnSdpa::run(cudaStream_t stream, const SdpaShape& shape, const SdpaMemory& memory) {
  Graph& g = graph(shape);
  if (!g.refusal.empty()) fail("{}", g.refusal);
  if (stream_ != stream) check_cudnn(cudnnSetStream(handle_, stream), "cudnnSetStream");
  stream_ = stream;
  SO_CHECK(g.workspace <= memory.workspace_bytes, "cuDNN needs {} bytes of workspace for {}, there are {}", g.workspace,
           shape.description(), memory.workspace_bytes);
  std::unordered_map<std::int64_t, void*> pointers;
  for (int i = 0; i < sdpa_tensors; ++i) {
    const auto t = static_cast<SdpaTensor>(i);
    const auto at = static_cast<std::size_t>(i);
    if (memory.data[at]) pointers[data_id(t)] = memory.data[at];
    if (shape.ragged && memory.offsets[at]) pointers[offsets_id(t)] = memory.offsets[at];
  }
  if (shape.ragged) {
    pointers[lengths_q_id] = memory.lengths_q;
    pointers[lengths_k_id] = memory.lengths_k;
  }
  if (shape.sinks) pointers[sinks_id] = const_cast<float*>(memory.sinks);
  const std::string failed = refusal(g.graph.execute(handle_, pointers, memory.workspace), shape, "run");
  if (!failed.empty()) fail("{}", failed);
}

}  // namespace so
