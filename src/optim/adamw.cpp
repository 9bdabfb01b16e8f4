#include "optim/adamw.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cfloat>
#include <cmath>

#include "base/error.h"
#include "base/mix_bits.h"
#include "device/trace.h"
#include "optim/adamw_tuning.h"
#include "optim/cpu/adamw_kernels.h"
#include "optim/float_mode.h"

namespace so {
namespace {

using namespace adamw;

constexpr std::size_t kLine = 64;
constexpr std::int64_t kLineElements = kLine / sizeof(bf16);  // offsets from a boundary repeat after as many elements

// From here on (2 MB of traffic, a core's own cache) updates store past the cache: the new state is next read a step
// later, when the rest of the model has long evicted it. bench/adamw_bench.cpp: beside the old state that is 1.4 times
// as fast, since lines are not fetched only to be overwritten. In place the lines were fetched anyway, and storing past
// the cache is half as fast; only the weights stream then.
constexpr std::size_t kStreamFrom = std::size_t{1} << 16;

std::atomic<std::size_t> chosen_table{0};
std::atomic<AdamWStores> chosen_stores{AdamWStores::automatic};
// Each by itself: an update that begins between two changes has a mixture, which is as right.
std::atomic<std::int64_t> chosen_tile{AdamWTuning{}.tile}, chosen_prefetch{AdamWTuning{}.prefetch};
static_assert(AdamWTuning::line % kLineElements == 0);

// An update after its arguments were checked.
struct Update {
  Piece whole;
  Outputs outputs;
  Kernel kernel;
  std::size_t gradient_size, weight_size;  // bytes an element
};

struct Range {
  const void* begin;
  std::size_t bytes;
  bool overlaps(const Range& other) const {
    const auto a = reinterpret_cast<std::uintptr_t>(begin), b = reinterpret_cast<std::uintptr_t>(other.begin);
    return a < b + other.bytes && b < a + bytes;
  }
};

// Bytes of the scales of an update's blocks.
Range scales_of(const MomentsView& moments, std::size_t count) {
  const auto blocks = moment_blocks(moments.in_block() + static_cast<std::int64_t>(count));
  return {moments.scales(), static_cast<std::size_t>(blocks) * sizeof(float)};
}

void check_blocks(const Update& u) {
  const Piece& w = u.whole;
  const std::array<Range, 2> in = {scales_of(w.in.m, w.count), scales_of(w.in.v, w.count)};
  SO_CHECK(in[0].begin && in[1].begin, "no memory for scales of moments");
  SO_CHECK(w.in.m.in_block() == w.in.v.in_block(), "moments that begin {} and {} elements after a block does",
           w.in.m.in_block(), w.in.v.in_block());
  if (u.outputs == kWeightsOnly) return;
  const std::array<Range, 2> out = {scales_of(w.out.m, w.count), scales_of(w.out.v, w.count)};
  SO_CHECK(out[0].begin && out[1].begin, "no memory for scales of moments");
  for (const MomentsView& moments : {w.in.m, w.in.v, MomentsView(w.out.m), MomentsView(w.out.v)})
    SO_CHECK(moments.in_block() == 0, "an update begins {} elements after a block does", moments.in_block());
  SO_CHECK(!out[0].overlaps(out[1]) && !out[0].overlaps(in[1]) && !out[1].overlaps(in[0]),
           "new scales of one moment overlap the other's");
  for (std::size_t i = 0; i < 2; ++i)
    SO_CHECK(out[i].begin == in[i].begin || !out[i].overlaps(in[i]), "new scales overlap old ones");
}

void check_memory(const Update& u) {
  const Piece& w = u.whole;
  for (const MomentsView& moments : {w.in.m, w.in.v, MomentsView(w.out.m), MomentsView(w.out.v)})
    SO_CHECK(!moments || moments.dtype() == w.in.m.dtype(), "moments in {} and {}", name_of(w.in.m.dtype()),
             name_of(moments.dtype()));
  const std::size_t bytes = w.count * sizeof(float), moment_bytes = w.count * w.in.m.element_size();
  if (w.in.m.dtype() == DType::u8) check_blocks(u);
  const std::array<const char*, 3> names = {"master", "m", "v"};
  const std::array<Range, 4> in = {Range{w.in.master, bytes}, Range{w.in.m.data(), moment_bytes},
                                   Range{w.in.v.data(), moment_bytes}, Range{w.gradient, w.count * u.gradient_size}};
  const std::array<Range, 4> out = {Range{w.out.master, bytes}, Range{w.out.m.data(), moment_bytes},
                                    Range{w.out.v.data(), moment_bytes}, Range{w.weights, w.count * u.weight_size}};
  const std::size_t first = u.outputs == kWeightsOnly ? 3 : 0;  // of `out`
  for (std::size_t i = 0; i < 3; ++i)
    SO_CHECK(in[i].begin && (out[i].begin || i < first), "no memory for {}", names[i]);
  for (std::size_t o = first; o < 4; ++o) {
    const char* name = o < 3 ? names[o] : "weights";
    for (std::size_t i = 0; i < 4; ++i) {
      const bool in_place = o == i && o < 3 && out[o].begin == in[i].begin;
      SO_CHECK(in_place || !out[o].overlaps(in[i]), "new {} overlaps old {}", name, i < 3 ? names[i] : "gradient");
    }
    for (std::size_t other = first; other < o; ++other)
      SO_CHECK(!out[o].overlaps(out[other]), "new {} overlaps new {}", name, names[other]);
  }
}

// Elements before the first at which all output arrays are on a cache line's boundary; false if there is none, or if
// blocks do not begin there. Codes are stored through the cache.
bool find_head(const Update& u, std::size_t* head) {
  const Piece& w = u.whole;
  const auto aligned = [](const void* p, std::size_t i, std::size_t size) {
    return (reinterpret_cast<std::uintptr_t>(p) + i * size) % kLine == 0;
  };
  const std::size_t moment_size = w.in.m.element_size();
  if (w.in.m.dtype() == DType::u8) {
    *head = 0;
    return w.in.m.in_block() == 0 && (u.outputs == kWeightsOnly || aligned(w.out.master, 0, sizeof(float))) &&
           (!w.weights || aligned(w.weights, 0, u.weight_size));
  }
  for (std::size_t i = 0; i < kLineElements; ++i) {
    const bool state = u.outputs == kWeightsOnly ||
                       (aligned(w.out.master, i, sizeof(float)) && aligned(w.out.m.data(), i, moment_size) &&
                        aligned(w.out.v.data(), i, moment_size));
    if (state && (!w.weights || aligned(w.weights, i, u.weight_size))) {
      *head = i;
      return true;
    }
  }
  *head = 0;
  return false;
}

Stores choose_stores(const Update& u, bool congruent) {
  if (!congruent) return kCached;
  switch (chosen_stores.load(std::memory_order_relaxed)) {
    case AdamWStores::cached:
      return kCached;
    case AdamWStores::stream_weights:
      return kStreamWeights;
    case AdamWStores::stream_all:
      return kStreamAll;
    case AdamWStores::automatic:
      break;
  }
  if (u.whole.count < kStreamFrom) return kCached;
  return u.outputs == kWeightsOnly || u.whole.in.master == u.whole.out.master ? kStreamWeights : kStreamAll;
}

// `out` is null for a preview.
Update prepare(const AdamWStep& step, bool decay, const GradientSpan& gradient, AdamWStateView in,
               const AdamWState* out, const WeightSpan& weights) {
  Update u{};
  u.outputs = out ? kStateAndWeights : kWeightsOnly;
  u.whole.step = step;
  if (!decay) u.whole.step.decay = 0.0f;
  u.whole.in = in;
  if (out) u.whole.out = *out;

  Gradients gradients{};
  if (const auto* f32 = std::get_if<std::span<const float>>(&gradient)) {
    gradients = kGradientsF32;
    u.whole.gradient = f32->data();
    u.whole.count = f32->size();
    u.gradient_size = sizeof(float);
  } else {
    const auto& half = std::get<std::span<const bf16>>(gradient);
    gradients = kGradientsBf16;
    u.whole.gradient = half.data();
    u.whole.count = half.size();
    u.gradient_size = sizeof(bf16);
  }

  Weights kind = kNoWeights;
  std::size_t weight_count = u.whole.count;
  if (const auto* f32 = std::get_if<std::span<float>>(&weights)) {
    kind = kWeightsF32;
    u.whole.weights = f32->data();
    weight_count = f32->size();
    u.weight_size = sizeof(float);
  } else if (const auto* half = std::get_if<std::span<bf16>>(&weights)) {
    kind = kWeightsBf16;
    u.whole.weights = half->data();
    weight_count = half->size();
    u.weight_size = sizeof(bf16);
  }
  SO_CHECK(weight_count == u.whole.count, "{} gradients, {} weights", u.whole.count, weight_count);
  SO_CHECK(out || kind != kNoWeights, "a preview without weights");
  if (u.whole.count == 0) return u;
  check_memory(u);

  const bool congruent = find_head(u, &u.whole.head);
  u.whole.prefetch = static_cast<std::size_t>(chosen_prefetch.load(std::memory_order_relaxed));
  const KernelTable& table = kernel_tables()[chosen_table.load(std::memory_order_relaxed)];
  const MomentKinds moments = in.m.dtype() == DType::u8     ? kMomentsU8
                              : in.m.dtype() == DType::bf16 ? kMomentsBf16
                                                            : kMomentsF32;
  u.kernel = table.kernel[u.outputs][moments][gradients][kind][choose_stores(u, congruent)];
  return u;
}

// Elements [begin, end) of the whole. `begin` is 0 or on the aligned grid that starts at head.
void run(const Update& u, std::size_t begin, std::size_t end) {
  check_float_mode();
  const Piece& w = u.whole;
  Piece piece = w;
  piece.count = end - begin;
  piece.head = std::min(begin == 0 ? w.head : 0, piece.count);
  piece.gradient = static_cast<const std::byte*>(w.gradient) + begin * u.gradient_size;
  const auto offset = static_cast<std::ptrdiff_t>(begin);
  piece.in = {w.in.master + offset, w.in.m + offset, w.in.v + offset};
  if (u.outputs == kStateAndWeights) piece.out = {w.out.master + offset, w.out.m + offset, w.out.v + offset};
  if (w.weights) piece.weights = static_cast<std::byte*>(w.weights) + begin * u.weight_size;
  u.kernel(piece);
}

ParallelWork work_of(const Update& u) {
  // Where the first element is not on a boundary, the grid starts before it, so that pieces meet on boundaries.
  // Moments in blocks have it begin with a block, and pieces end with one.
  const auto count = static_cast<std::int64_t>(u.whole.count);
  const bool blocks = u.whole.in.m.dtype() == DType::u8;
  const std::int64_t shift = blocks              ? u.whole.in.m.in_block()
                             : u.whole.head == 0 ? 0
                                                 : kLineElements - static_cast<std::int64_t>(u.whole.head);
  const std::int64_t chosen = chosen_tile.load(std::memory_order_relaxed),
                     tile = blocks ? moment_blocks(chosen) * moment_block : chosen;
  if (count == 0) return {};
  return {count + shift, tile, [u, shift](std::int64_t begin, std::int64_t end) {
            run(u, static_cast<std::size_t>(std::max<std::int64_t>(begin - shift, 0)),
                static_cast<std::size_t>(end - shift));
          }};
}

}  // namespace

AdamWStep make_adamw_step(const AdamWHyper& hyper, double lr, double weight_decay, std::int64_t step_number,
                          float grad_scale) {
  const auto is_beta = [](double beta) { return beta >= 0.0 && beta < 1.0; };
  if (!is_beta(hyper.beta1)) fail("AdamW: beta1 is {}; it must lie in [0, 1)", hyper.beta1);
  if (!is_beta(hyper.beta2)) fail("AdamW: beta2 is {}; it must lie in [0, 1)", hyper.beta2);
  if (!(hyper.epsilon >= FLT_MIN && hyper.epsilon <= FLT_MAX))
    fail("AdamW: epsilon is {}; it must be a positive number that fp32 can hold", hyper.epsilon);
  if (!(lr >= 0.0 && lr <= FLT_MAX)) fail("AdamW: the learning rate is {}; it must be finite and not negative", lr);
  if (!(weight_decay >= 0.0 && weight_decay <= FLT_MAX))
    fail("AdamW: weight_decay is {}; it must be finite and not negative", weight_decay);
  SO_CHECK(step_number >= 1, "AdamW steps count from 1, not {}", step_number);
  SO_CHECK(std::isfinite(grad_scale), "grad_scale is {}", grad_scale);

  const auto t = static_cast<double>(step_number);
  const double bias1 = 1.0 - std::pow(hyper.beta1, t);
  const double bias2 = 1.0 - std::pow(hyper.beta2, t);
  AdamWStep step;
  step.grad_scale = grad_scale;
  step.one_minus_beta1 = static_cast<float>(1.0 - hyper.beta1);
  step.beta2 = static_cast<float>(hyper.beta2);
  step.one_minus_beta2 = static_cast<float>(1.0 - hyper.beta2);
  step.inv_sqrt_bias2 = static_cast<float>(1.0 / std::sqrt(bias2));
  step.epsilon = static_cast<float>(hyper.epsilon);
  step.step_size = static_cast<float>(lr / bias1);
  step.decay = static_cast<float>(lr * weight_decay);
  step.dither = static_cast<std::uint32_t>(mix_bits(static_cast<std::uint64_t>(step_number)));
  return step;
}

AdamWStep with_lr_multiplier(AdamWStep step, double multiplier) {
  SO_CHECK(multiplier > 0 && std::isfinite(multiplier), "a learning rate times {}", multiplier);
  step.step_size = static_cast<float>(step.step_size * multiplier);
  step.decay = static_cast<float>(step.decay * multiplier);
  return step;
}

void adamw_update(const AdamWStep& step, bool decay, GradientSpan gradient, AdamWStateView in, AdamWState out,
                  WeightSpan weights) {
  const Update u = prepare(step, decay, gradient, in, &out, weights);
  if (u.whole.count > 0) run(u, 0, u.whole.count);
}

ParallelWork adamw_update_work(const AdamWStep& step, bool decay, GradientSpan gradient, AdamWStateView in,
                               AdamWState out, WeightSpan weights) {
  return work_of(prepare(step, decay, gradient, in, &out, weights));
}

void adamw_update_parallel(ThreadPool& pool, const AdamWStep& step, bool decay, GradientSpan gradient,
                           AdamWStateView in, AdamWState out, WeightSpan weights) {
  const TraceSpan span("AdamW");
  pool.run(adamw_update_work(step, decay, gradient, in, out, weights));
}

void adamw_preview(const AdamWStep& step, bool decay, GradientSpan gradient, AdamWStateView in, WeightSpan weights) {
  const Update u = prepare(step, decay, gradient, in, nullptr, weights);
  if (u.whole.count > 0) run(u, 0, u.whole.count);
}

ParallelWork adamw_preview_work(const AdamWStep& step, bool decay, GradientSpan gradient, AdamWStateView in,
                                WeightSpan weights) {
  return work_of(prepare(step, decay, gradient, in, nullptr, weights));
}

std::vector<std::string> adamw_instruction_sets() {
  std::vector<std::string> names;
  for (const KernelTable& table : kernel_tables()) names.push_back(table.name);
  return names;
}

void adamw_use_instruction_set(std::string_view name) {
  const auto& tables = kernel_tables();
  std::size_t i = 0;
  if (!name.empty())
    while (i < tables.size() && tables[i].name != name) ++i;
  if (i == tables.size()) fail("AdamW: this machine has no instruction set '{}'; its best is {}", name, tables[0].name);
  chosen_table = i;
}

void adamw_use_stores(AdamWStores stores) { chosen_stores = stores; }

void adamw_use_tuning(const AdamWTuning& tuning) {
  SO_CHECK(tuning.usable(), "tiles of {} elements, fetched {} ahead", tuning.tile, tuning.prefetch);
  chosen_tile = tuning.tile;
  chosen_prefetch = tuning.prefetch;
}

AdamWTuning adamw_tuning() { return {.tile = chosen_tile, .prefetch = chosen_prefetch}; }

}  // namespace so
