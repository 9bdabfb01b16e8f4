// Scaled dot-product attention by cuDNN: bf16, causal, self-attention (queries and keys of the same documents).
//
// A cuDNN graph is made for one shape and takes 50 to 80 ms to build (0.5 s the first of its kind in a process), so
// graphs are kept, by shape, for as long as this object lives. Callers keep the number of shapes small.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

struct cudnnContext;

namespace so {

enum class SdpaTensor : int { q, k, v, out, dout, dq, dk, dv, stats };
inline constexpr int sdpa_tensors = 9;
constexpr bool of_keys(SdpaTensor t) {
  return t == SdpaTensor::k || t == SdpaTensor::v || t == SdpaTensor::dk || t == SdpaTensor::dv;
}

// The sizes that a graph is built for. Every tensor is [batch, heads, length, head_dim] with rows `width` elements
// apart; keys, values and their gradients have `key_length`.
//   dense:  document b begins at row b * length, and is as long; statistics are [batch, heads, length].
//   ragged: documents begin where offsets say and are as long as lengths say, at most `length`; statistics are
//           [rows, heads]. Rows of no document are neither read nor written.
struct SdpaShape {
  bool backward = false, ragged = false;
  bool deterministic = true;  // backward
  bool causal = true;         // a query sees the keys up to its own number; else all, as in a tile left of the diagonal
  std::int64_t batch = 0, heads = 0, kv_heads = 0, head_dim = 0, length = 0, key_length = 0;
  std::uint32_t scale_bits = 0;  // of the fp32 scale
  std::int64_t q_width = 0, k_width = 0, v_width = 0, out_width = 0;
  std::int64_t dout_width = 0, dq_width = 0, dk_width = 0, dv_width = 0;  // backward
  std::int64_t stats_heads = 0;                                           // heads of the whole statistics
  std::int64_t window = 0;  // keys that a query sees at most, its own among them; 0: all up to its own
  bool sinks = false;       // forward: logits without a value take part, one for each head

  std::int64_t width(SdpaTensor t) const;  // of the statistics: stats_heads
  std::int64_t rows(SdpaTensor t) const { return of_keys(t) ? key_length : length; }

  auto operator<=>(const SdpaShape&) const = default;
  std::string description() const;
};

struct SdpaMemory {
  std::array<void*, sdpa_tensors> data{};
  // Ragged: int64 [batch + 1] offsets of each tensor in elements, int32 [batch] lengths.
  std::array<std::int64_t*, sdpa_tensors> offsets{};
  std::int32_t *lengths_q = nullptr, *lengths_k = nullptr;
  const float* sinks = nullptr;  // [heads], if the shape has them
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

class CudnnSdpa {
 public:
  CudnnSdpa();
  ~CudnnSdpa();

  // At least what the graph of this shape will ask for, by the formula that measurement has shown.
  static std::size_t workspace(const SdpaShape& shape);

  // Whether cuDNN runs this shape in workspace(shape). Plain causal attention it does wherever it documents it; with
  // windows and sinks, versions differ.
  bool takes(const SdpaShape& shape);

  // Error if cuDNN refuses, with its words; Bug if the workspace is too small.
  void run(cudaStream_t stream, const SdpaShape& shape, const SdpaMemory& memory);

 private:
  struct Graph;
  Graph& graph(const SdpaShape& shape);

  cudnnContext* handle_ = nullptr;  // made at first use
  cudaStream_t stream_ = nullptr;
  std::map<SdpaShape, std::unique_ptr<Graph>> graphs_;
};

}  // namespace so
