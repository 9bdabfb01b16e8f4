// Products of groups of rows: CUTLASS's ptr-array kernel, persistent and warp-specialised, and a kernel of ours that
// lays out its per-group arguments. All are in one file, since CUTLASS's headers take as long as an instance.
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>

#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "base/error.h"
#include "device/cuda/cuda_check.h"
#include "ops/cuda/grouped_gemm.h"

namespace so {
namespace {

using Shape = cute::Shape<int, int, int>;  // rows, columns, inner

// Two consumer warp groups take turns, one multiplying while the other writes.
struct Pingpong {
  using Mainloop = cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong;
  using Epilogue = cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong;
};

// LayoutA, LayoutB: CUTLASS's for [rows, inner] and [inner, columns]. Source: Out if `out` may be added to, else void.
template <class LayoutA, class LayoutB, class Out, class Source, class Tile, class Cluster, class Schedule>
struct Instance {
  using Element = cutlass::bfloat16_t;
  using LayoutOut = cutlass::layout::RowMajor;
  static constexpr int alignment = 8;
  static constexpr int out_alignment = 16 / sizeof(Out);
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, Source, LayoutOut*, out_alignment, Out, LayoutOut*,
      out_alignment, typename Schedule::Epilogue,
      cutlass::epilogue::fusion::LinearCombination<Out, float, Source, float>>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, LayoutA*, alignment, Element, LayoutB*, alignment,
      float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      typename Schedule::Mainloop>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<Shape>, Mainloop, Epilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

  using StrideA = typename Kernel::InternalStrideA;
  using StrideB = typename Kernel::InternalStrideB;
  using StrideOut = typename Kernel::InternalStrideD;

  // One of each a group, in device memory.
  struct Arrays {
    Shape* shapes;
    const Element **a, **b;
    Out** out;
    StrideA* strides_a;
    StrideB* strides_b;
    StrideOut* strides_out;
  };
};

// Which size the groups share out: rows of `out` and a, or what is summed over.
enum class Shared { rows, inner };

// The one stride of a matrix that is not fixed: it is there first or second.
template <class Stride>
__device__ Stride stride_of(std::int64_t step) {
  Stride stride{};
  if constexpr (cute::is_static<cute::remove_cvref_t<decltype(cute::get<0>(stride))>>::value)
    cute::get<1>(stride) = step;
  else
    cute::get<0>(stride) = step;
  return stride;
}

constexpr int argument_threads = 128;

template <class I, Shared SHARED>
__global__ void __launch_bounds__(argument_threads)
    arguments_kernel(typename I::Arrays arrays, const typename I::Element* a, const typename I::Element* b, void* out,
                     const std::int32_t* offsets, int groups, int rows, int columns, int inner) {
  const int group = static_cast<int>(blockIdx.x) * argument_threads + static_cast<int>(threadIdx.x);
  if (group >= groups) return;
  using Out = cute::remove_pointer_t<cute::remove_pointer_t<decltype(arrays.out)>>;
  const std::int64_t first = offsets[group];
  const int count = offsets[group + 1] - offsets[group];
  auto* to = static_cast<Out*>(out);
  if constexpr (SHARED == Shared::rows) {
    // No rows, no tiles.
    arrays.shapes[group] = Shape(count, columns, inner);
    arrays.a[group] = a + first * inner;
    arrays.b[group] = b + group * (static_cast<std::int64_t>(columns) * inner);
    arrays.out[group] = to + first * columns;
    arrays.strides_a[group] = stride_of<typename I::StrideA>(inner);
    constexpr bool columns_last =
        cute::is_static<cute::remove_cvref_t<decltype(cute::get<0>(typename I::StrideB{}))>>::value;
    arrays.strides_b[group] = stride_of<typename I::StrideB>(columns_last ? columns : inner);
  } else {
    // Nothing to sum would be a tile all the same, of what the registers held.
    arrays.shapes[group] = count > 0 ? Shape(rows, columns, count) : Shape(0, 0, 0);
    arrays.a[group] = a + first * rows;
    arrays.b[group] = b + first * columns;
    arrays.out[group] = to + group * (static_cast<std::int64_t>(rows) * columns);
    arrays.strides_a[group] = stride_of<typename I::StrideA>(rows);
    arrays.strides_b[group] = stride_of<typename I::StrideB>(columns);
  }
  arrays.strides_out[group] = stride_of<typename I::StrideOut>(columns);
}

// Cuts scratch into arrays, each at a multiple of 256 bytes.
class Cutter {
 public:
  explicit Cutter(const GroupedLaunch& launch)
      : at_(static_cast<std::byte*>(launch.scratch)), end_(at_ + launch.scratch_bytes) {}
  template <class T>
  T* take(std::size_t count) {
    auto* from = at_;
    const std::size_t bytes = (count * sizeof(T) + 255) / 256 * 256;
    SO_CHECK(bytes <= static_cast<std::size_t>(end_ - at_), "grouped products: {} bytes of scratch are too few",
             static_cast<std::size_t>(end_ - from));
    at_ += bytes;
    return reinterpret_cast<T*>(from);
  }

 private:
  std::byte *at_, *end_;
};

void check(cutlass::Status status, const char* what) {
  SO_CHECK(status == cutlass::Status::kSuccess, "CUTLASS: {}: {}", what, cutlassGetStatusString(status));
}

template <class I, Shared SHARED>
void run(const GroupedLaunch& launch, const GroupedProduct& p) {
  using Element = typename I::Element;
  const auto groups = static_cast<std::size_t>(p.groups);
  Cutter scratch(launch);
  typename I::Arrays arrays;
  arrays.shapes = scratch.take<Shape>(groups);
  arrays.a = scratch.take<const Element*>(groups);
  arrays.b = scratch.take<const Element*>(groups);
  arrays.out = scratch.take<cute::remove_pointer_t<decltype(arrays.out)>>(groups);
  arrays.strides_a = scratch.take<typename I::StrideA>(groups);
  arrays.strides_b = scratch.take<typename I::StrideB>(groups);
  arrays.strides_out = scratch.take<typename I::StrideOut>(groups);
  const auto blocks = static_cast<unsigned>((groups + argument_threads - 1) / argument_threads);
  arguments_kernel<I, SHARED><<<blocks, argument_threads, 0, launch.stream>>>(
      arrays, static_cast<const Element*>(p.a), static_cast<const Element*>(p.b), p.out, p.offsets,
      static_cast<int>(p.groups), static_cast<int>(p.rows), static_cast<int>(p.columns), static_cast<int>(p.inner));
  SO_CUDA_LAUNCHED("arguments of grouped products");

  typename I::Gemm::Arguments arguments;
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
  arguments.problem_shape = {static_cast<int>(p.groups), arrays.shapes, nullptr};
  arguments.mainloop = {arrays.a, arrays.strides_a, arrays.b, arrays.strides_b};
  arguments.epilogue.thread.alpha = 1.0f;
  arguments.epilogue.thread.beta = p.add ? 1.0f : 0.0f;
  if constexpr (!cute::is_void_v<typename I::Kernel::ElementC>) {
    // Without addition it is not read.
    arguments.epilogue.ptr_C = const_cast<typename I::Kernel::ElementC const**>(arrays.out);
    arguments.epilogue.dC = arrays.strides_out;
  }
  arguments.epilogue.ptr_D = arrays.out;
  arguments.epilogue.dD = arrays.strides_out;
  // Given, or CUTLASS would ask the driver at each call.
  arguments.hw_info.device_id = launch.device;
  arguments.hw_info.sm_count = launch.multiprocessors;
  auto* workspace = scratch.template take<std::byte>(I::Gemm::get_workspace_size(arguments));
  typename I::Gemm gemm;
  check(gemm.initialize(arguments, workspace, launch.stream), "initialize");
  check(gemm.run(launch.stream), "run");
}

}  // namespace

void grouped_rows(const GroupedLaunch& launch, const GroupedProduct& product) {
  using Rows =
      Instance<cutlass::layout::RowMajor, cutlass::layout::RowMajor, cutlass::bfloat16_t, void,
               cute::Shape<cute::_128, cute::Int<192>, cute::_64>, cute::Shape<cute::_1, cute::_1, cute::_1>, Pingpong>;
  run<Rows, Shared::rows>(launch, product);
}

void grouped_rows_transposed(const GroupedLaunch& launch, const GroupedProduct& product) {
  using Rows =
      Instance<cutlass::layout::RowMajor, cutlass::layout::ColumnMajor, cutlass::bfloat16_t, void,
               cute::Shape<cute::_128, cute::Int<192>, cute::_64>, cute::Shape<cute::_1, cute::_1, cute::_1>, Pingpong>;
  run<Rows, Shared::rows>(launch, product);
}

void grouped_weights_bf16(const GroupedLaunch& launch, const GroupedProduct& product) {
  using Weights =
      Instance<cutlass::layout::ColumnMajor, cutlass::layout::RowMajor, cutlass::bfloat16_t, cutlass::bfloat16_t,
               cute::Shape<cute::_128, cute::Int<192>, cute::_64>, cute::Shape<cute::_2, cute::_1, cute::_1>, Pingpong>;
  run<Weights, Shared::inner>(launch, product);
}

void grouped_weights_f32(const GroupedLaunch& launch, const GroupedProduct& product) {
  using Weights =
      Instance<cutlass::layout::ColumnMajor, cutlass::layout::RowMajor, float, float,
               cute::Shape<cute::_128, cute::_128, cute::_64>, cute::Shape<cute::_2, cute::_1, cute::_1>, Pingpong>;
  run<Weights, Shared::inner>(launch, product);
}

}  // namespace so
