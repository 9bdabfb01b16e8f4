#include "device/cuda/shared_words.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"

namespace so {
namespace {

std::size_t shared_bytes(int count, int stride) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t bytes = sizeof(std::uint32_t) * static_cast<std::size_t>(count) * static_cast<std::size_t>(stride);
  return (bytes + page - 1) / page * page;
}

[[noreturn]] void fail_to_share(const std::string& name, int error) {
  fail("cannot share memory with the ranks of this host (/dev/shm{}: {}); --collectives nccl does without it", name,
       std::strerror(error));
}

// Ranks of one process make theirs at the same time.
std::string new_name() {
  static std::atomic<int> made = 0;
  return fmt::format("/superoffload-{}-{}", getpid(), made++);
}

}  // namespace

SharedWords::SharedWords(int count) : name_(new_name()), bytes_(shared_bytes(count, stride)) {
  shm_unlink(name_.c_str());  // of a process that had this number and was killed
  const int file = shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file < 0) fail_to_share(name_, errno);
  linked_ = true;
  // A page that is not there for want of room would be a signal at its first use.
  const int error = posix_fallocate(file, 0, static_cast<off_t>(bytes_));
  if (error != 0) {
    close(file);
    unlink();
    fail_to_share(name_, error);
  }
  map(file, bytes_);
}

SharedWords::SharedWords(const std::string& name, int count) : name_(name), bytes_(shared_bytes(count, stride)) {
  const int file = shm_open(name_.c_str(), O_RDWR, 0);
  if (file < 0) fail_to_share(name_, errno);
  map(file, bytes_);
}

SharedWords::SharedWords(Unshared, int count) {
  HostPinning& pinning = own_.emplace(cuda_pinning_calls());
  void* const memory =
      pinning.take(shared_bytes(count, stride), [](void* data, std::size_t bytes) { std::memset(data, 0, bytes); });
  if (memory == nullptr) fail("no host memory is left for words that streams wait for");
  void* const there = pinning.mapped(memory);
  if (there == nullptr) {
    pinning.give_back(memory);
    fail("this NVIDIA driver maps no host memory for the GPU, so its streams cannot wait for other ranks");
  }
  words_ = static_cast<std::atomic<std::uint32_t>*>(memory);
  on_device_ = reinterpret_cast<std::uint64_t>(there);
}

// Closes the file.
void SharedWords::map(int file, std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  close(file);
  if (memory == MAP_FAILED) {
    unlink();
    fail_to_share(name_, error);
  }
  try {
    if (const cudaError_t status = cudaHostRegister(memory, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
        status != cudaSuccess) {
      cudaGetLastError();
      fail(
          "the GPU does not reach memory that the ranks of this host share (cudaHostRegister: {}); --collectives nccl "
          "does without it",
          cudaGetErrorString(status));
    }
    void* there = nullptr;
    SO_CUDA(cudaHostGetDevicePointer(&there, memory, 0));
    on_device_ = reinterpret_cast<std::uint64_t>(there);
  } catch (...) {
    munmap(memory, bytes);
    unlink();
    throw;
  }
  // The pages are zeros, and a lock-free atomic is the word that it holds.
  static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
                std::atomic<std::uint32_t>::is_always_lock_free);
  words_ = static_cast<std::atomic<std::uint32_t>*>(memory);
}

SharedWords::~SharedWords() {
  unlink();
  if (own_) {
    own_->give_back(words_);
  } else {
    cudaHostUnregister(words_);
    munmap(words_, bytes_);
  }
}

void SharedWords::unlink() {
  if (linked_) shm_unlink(name_.c_str());
  linked_ = false;
}

}  // namespace so
