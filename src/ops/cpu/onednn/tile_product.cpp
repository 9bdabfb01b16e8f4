// oneDNN, one thread at a time. The distributions build it on OpenMP; the functions here tell OpenMP that the calling
// thread is a team of one (its own setting, other threads keep theirs), so no OpenMP threads are ever made and the
// project's pool alone decides who computes.
#include "ops/cpu/tile_product.h"

#include <dlfcn.h>

#include <map>
#include <new>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/process_limits.h"

#if DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_OMP && DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_SEQ
#error "this oneDNN is built for TBB or an outside thread pool: install one built for OpenMP, as in Debian and Ubuntu"
#endif

namespace so::products {
namespace {

// The symbol is looked up at run time because it must be the one of the OpenMP runtime that oneDNN has loaded (GNU's or
// LLVM's), whatever compiler builds the project.
void use_one_thread() {
#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
  static auto* const set_num_threads = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  thread_local const bool done = [] {
    SO_CHECK(set_num_threads, "oneDNN is built on OpenMP, but no OpenMP runtime is loaded");
    set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
#endif
}

// Version 2's products on AMX have ended in an illegal instruction where the inner size is odd (seen with 2.6 of
// Debian 12 on a Xeon of 2023), so it is kept to AVX-512. Before anything of the library is used.
void choose_instructions() {
#if DNNL_VERSION_MAJOR < 3
  static const bool done = [] {
    dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16);  // refused only if it has been used, or set by its user
    return true;
  }();
  static_cast<void>(done);
#endif
}

// Ragged batches bring ever new shapes; beyond this many a thread's cache starts afresh. (oneDNN keeps the compiled
// code in a cache of its own, of as many, so a new primitive costs about 0.1 ms, a tile about as much or more.)
constexpr std::size_t max_primitives = 256;

const dnnl::engine& engine() {
  choose_instructions();
  static const dnnl::engine cpu = [] {
    dnnl::set_primitive_cache_capacity(static_cast<int>(max_primitives));
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return cpu;
}

// oneDNN compiles its kernels where it first needs each, and writes to address zero if there is no memory for one (2.6
// does). So there is a look for room before, several times what all kernels take.
constexpr std::size_t kernel_room = 16 << 20;

struct Bf16Matmul {
  dnnl::memory::desc a, b, c, scratch;
  dnnl::matmul primitive;
};

dnnl::memory::dims strides(bool transposed, std::int64_t stride) {
  return transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1};
}

Bf16Matmul make_matmul(bool a_transposed, bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k,
                       std::int64_t a_stride, std::int64_t b_stride, std::int64_t c_stride) {
  using dnnl::memory;
  const memory::desc a({m, k}, memory::data_type::bf16, strides(a_transposed, a_stride));
  const memory::desc b({k, n}, memory::data_type::bf16, strides(b_transposed, b_stride));
  const memory::desc c({m, n}, memory::data_type::f32, strides(false, c_stride));
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(engine(), a, b, c, attributes);
#else
  const dnnl::matmul::primitive_desc description({a, b, c}, attributes, engine());
#endif
  return {a, b, c, description.scratchpad_desc(), dnnl::matmul(description)};
}

}  // namespace

bool has_bf16() {
  static const bool has = [] {
    choose_instructions();
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    return (isa & wanted) == wanted;  // the values are bit sets: a larger set contains what it extends
  }();
  return has;
}

void sgemm(bool a_transposed, bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
           const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, float beta, float* c,
           std::int64_t c_stride) {
  choose_instructions();
  use_one_thread();
  require_room(kernel_room);
  const auto status = dnnl_sgemm(a_transposed ? 'T' : 'N', b_transposed ? 'T' : 'N', m, n, k, alpha, a, a_stride, b,
                                 b_stride, beta, c, c_stride);
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  SO_CHECK(status == dnnl_success, "dnnl_sgemm of [{}, {}, {}]: {}", m, n, k, static_cast<int>(status));
}

void bf16_gemm(bool a_transposed, bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, const bf16* a,
               std::int64_t a_stride, const bf16* b, std::int64_t b_stride, float* c, std::int64_t c_stride) {
  using Key =
      std::tuple<bool, bool, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  thread_local std::map<Key, Bf16Matmul> cache;  // per thread: no lock, and the primitives know of one thread only
  thread_local std::vector<std::byte> scratch;
  thread_local dnnl::stream stream(engine());
  SO_CHECK(has_bf16(), "this CPU has no bf16 instructions");
  use_one_thread();

  const Key key{a_transposed, b_transposed, m, n, k, a_stride, b_stride, c_stride};
  auto found = cache.find(key);
  if (found == cache.end()) {
    if (cache.size() >= max_primitives) cache.clear();
    require_room(kernel_room);
    try {
      found = cache.emplace(key, make_matmul(a_transposed, b_transposed, m, n, k, a_stride, b_stride, c_stride)).first;
    } catch (const dnnl::error& error) {
      if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
      throw;
    }
  }
  const Bf16Matmul& matmul = found->second;
  constexpr std::size_t alignment = 64;
  if (scratch.size() < matmul.scratch.get_size() + alignment) scratch.resize(matmul.scratch.get_size() + alignment);
  auto aligned = reinterpret_cast<std::uintptr_t>(scratch.data()) + alignment - 1;
  aligned -= aligned % alignment;
  const auto memory = [](const dnnl::memory::desc& description, const void* data) {
    return dnnl::memory(description, engine(), const_cast<void*>(data));  // the interface has no const view
  };
  matmul.primitive.execute(stream, {{DNNL_ARG_SRC, memory(matmul.a, a)},
                                    {DNNL_ARG_WEIGHTS, memory(matmul.b, b)},
                                    {DNNL_ARG_DST, memory(matmul.c, c)},
                                    {DNNL_ARG_SCRATCHPAD, memory(matmul.scratch, reinterpret_cast<void*>(aligned))}});
  stream.wait();
}

}  // namespace so::products
