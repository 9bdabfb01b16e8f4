// Conversion between f32 and bf16.
#include <cstdint>

#include "base/bf16_arrays.h"
#include "device/cpu/cpu_device.h"
#include "optim/cpu/cpu_engine_ops.h"
#include "optim/engine_ops_checks.h"

namespace so {
namespace {

// Some tens of microseconds of memory traffic, several times what it costs to wake a thread.
constexpr std::int64_t cast_piece_elements = 1 << 15;

}  // namespace

void CpuEngineOps::cast(Stream& stream, Tensor out, Tensor in) {
  check_cast(out, in);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("cast", WorkCategory::memory_bound, [=, &pool] {
    pool.parallel_for(in.size(), cast_piece_elements, [&](std::int64_t begin, std::int64_t end) {
      const auto count = static_cast<std::size_t>(end - begin);
      if (out.dtype() == DType::bf16)
        round_to_bf16(in.as<float>() + begin, out.as<bf16>() + begin, count);
      else
        widen_bf16(in.as<bf16>() + begin, out.as<float>() + begin, count);
    });
  });
}

}  // namespace so
