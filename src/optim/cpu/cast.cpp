// Conversion between f32 and bf16.
#include <cstdint>
#include <vector>

#include "base/bf16_arrays.h"
#include "device/cpu/cpu_device.h"
#include "optim/cpu/cpu_engine_ops.h"
#include "optim/engine_ops_checks.h"

namespace so {
namespace {

// Some tens of microseconds of memory traffic, several times what it costs to wake a thread.
constexpr std::int64_t cast_piece_elements = 1 << 15;

}  // namespace

void CpuEngineOps::cast(Stream& stream, std::span<const DeviceCast> casts) {
  check_cast(casts);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("cast", WorkCategory::memory_bound, [all = std::vector(casts.begin(), casts.end()), &pool] {
    for (const DeviceCast& cast : all)
      pool.parallel_for(cast.in.size(), cast_piece_elements, [&](std::int64_t begin, std::int64_t end) {
        const auto count = static_cast<std::size_t>(end - begin);
        if (cast.out.dtype() == DType::bf16)
          round_to_bf16(cast.in.as<float>() + begin, cast.out.as<bf16>() + begin, count);
        else
          widen_bf16(cast.in.as<bf16>() + begin, cast.out.as<float>() + begin, count);
      });
  });
}

}  // namespace so
