// Addition of f32 and bf16.
#include <cstdint>

#include "device/cpu/cpu_device.h"
#include "optim/cpu/cpu_engine_ops.h"
#include "optim/engine_ops_checks.h"

namespace so {
namespace {

constexpr std::int64_t add_piece_elements = 1 << 15;  // as cast.cpp

template <class To, class From>
void add_elements(To* out, const From* in, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = To(static_cast<float>(out[i]) + static_cast<float>(in[i]));
}

}  // namespace

void CpuEngineOps::add(Stream& stream, Tensor out, Tensor in) {
  check_add(out, in);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("add", WorkCategory::memory_bound, [=, &pool] {
    pool.parallel_for(in.size(), add_piece_elements, [&](std::int64_t begin, std::int64_t end) {
      const auto add_to = [&](auto* to) {
        if (in.dtype() == DType::bf16)
          add_elements(to + begin, in.as<const bf16>() + begin, end - begin);
        else
          add_elements(to + begin, in.as<const float>() + begin, end - begin);
      };
      if (out.dtype() == DType::bf16)
        add_to(out.as<bf16>());
      else
        add_to(out.as<float>());
    });
  });
}

}  // namespace so
