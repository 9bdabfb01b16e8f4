#include "device/cuda/cudnn_library.h"

#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <fmt/format.h>

#include "base/shared_library.h"

namespace so {
namespace {

// The oldest whose kernels the tests hold to the CPU's results: with 9.14 the bf16 gradient for heads of 16 ends in an
// illegal instruction.
constexpr std::size_t oldest_cudnn = 91900;

struct Cudnn {
  decltype(&cudnnGetVersion) version = nullptr;
  decltype(&cudnnGetErrorString) error_string = nullptr;
  decltype(&cudnnGetLastErrorString) last_error_string = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnGetStream) stream = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) attribute = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
  std::string reason;  // empty: all are there
};

std::string cudnn_version_text(std::size_t version) {
  return fmt::format("{}.{}", version / 10000, version / 100 % 100);
}

Cudnn load_cudnn() {
  Cudnn cudnn;
  constexpr int cuda = CUDART_VERSION / 1000;
  // cuDNN asks the loader for NVRTC by its name alone, which finds one that is loaded.
  const std::string nvrtc_folder = cuda >= 13 ? fmt::format("cu{}", cuda) : "cuda_nvrtc";
  load_library(nvidia_files(fmt::format("libnvrtc.so.{}", cuda), nvrtc_folder));
  const SharedLibrary library = load_library(nvidia_files("libcudnn.so.9", "cudnn", SO_CUDNN_LIBRARY));
  if (library.handle == nullptr) {
    cudnn.reason = fmt::format(
        "cuDNN 9 cannot be loaded ({}); install it (pip install 'superoffload[cuda]', where the program was installed "
        "by pip), add its directory to LD_LIBRARY_PATH, or use --device cpu",
        library.reason);
    return cudnn;
  }
  SymbolFinder find(library);
  find(cudnn.version, "cudnnGetVersion");
  find(cudnn.error_string, "cudnnGetErrorString");
  find(cudnn.last_error_string, "cudnnGetLastErrorString");
  find(cudnn.create, "cudnnCreate");
  find(cudnn.destroy, "cudnnDestroy");
  find(cudnn.set_stream, "cudnnSetStream");
  find(cudnn.stream, "cudnnGetStream");
  find(cudnn.create_descriptor, "cudnnBackendCreateDescriptor");
  find(cudnn.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  find(cudnn.finalize, "cudnnBackendFinalize");
  find(cudnn.set_attribute, "cudnnBackendSetAttribute");
  find(cudnn.attribute, "cudnnBackendGetAttribute");
  find(cudnn.execute, "cudnnBackendExecute");
  if (find.missing() != nullptr)
    cudnn.reason = fmt::format("this cuDNN has no {}", find.missing());
  else if (const std::size_t version = cudnn.version(); version < oldest_cudnn)
    cudnn.reason = fmt::format(
        "cuDNN {} is too old: some of its attention kernels fail; install cuDNN {} or later, or use --device cpu",
        cudnn_version_text(version), cudnn_version_text(oldest_cudnn));
  return cudnn;
}

const Cudnn& cudnn() {
  static const Cudnn loaded = load_cudnn();
  return loaded;
}

}  // namespace

const std::string& why_no_cudnn() { return cudnn().reason; }

}  // namespace so

// Hidden: this process's other libraries have cuDNN's own.
#define SO_OF_CUDNN __attribute__((visibility("hidden")))
extern "C" {

SO_OF_CUDNN size_t cudnnGetVersion() { return so::cudnn().version(); }

SO_OF_CUDNN const char* cudnnGetErrorString(cudnnStatus_t status) { return so::cudnn().error_string(status); }

SO_OF_CUDNN void cudnnGetLastErrorString(char* message, size_t size) { so::cudnn().last_error_string(message, size); }

SO_OF_CUDNN cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return so::cudnn().create(handle); }

SO_OF_CUDNN cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return so::cudnn().destroy(handle); }

SO_OF_CUDNN cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return so::cudnn().set_stream(handle, stream);
}

SO_OF_CUDNN cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  return so::cudnn().stream(handle, stream);
}

SO_OF_CUDNN cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                       cudnnBackendDescriptor_t* descriptor) {
  return so::cudnn().create_descriptor(type, descriptor);
}

SO_OF_CUDNN cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  return so::cudnn().destroy_descriptor(descriptor);
}

SO_OF_CUDNN cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return so::cudnn().finalize(descriptor);
}

SO_OF_CUDNN cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                                   cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                                   int64_t count, const void* elements) {
  return so::cudnn().set_attribute(descriptor, name, type, count, elements);
}

SO_OF_CUDNN cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                                   cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                                   int64_t asked, int64_t* count, void* elements) {
  return so::cudnn().attribute(descriptor, name, type, asked, count, elements);
}

SO_OF_CUDNN cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                              cudnnBackendDescriptor_t variants) {
  return so::cudnn().execute(handle, plan, variants);
}

}  // extern "C"
#undef SO_OF_CUDNN
