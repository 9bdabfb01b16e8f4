#include "base/xxh3.h"

#include <xxhash.h>

#include <new>

#include "base/error.h"

namespace so {

std::uint64_t xxh3(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

struct Xxh3Stream::State {
  State() : handle(XXH3_createState()) {
    if (handle == nullptr) throw std::bad_alloc();
    SO_CHECK(XXH3_64bits_reset(handle) == XXH_OK);
  }
  ~State() { XXH3_freeState(handle); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  XXH3_state_t* handle;
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {}
Xxh3Stream::~Xxh3Stream() = default;
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;

void Xxh3Stream::add(std::span<const std::byte> bytes) {
  SO_CHECK(XXH3_64bits_update(state_->handle, bytes.data(), bytes.size()) == XXH_OK);
}

std::uint64_t Xxh3Stream::value() const { return XXH3_64bits_digest(state_->handle); }

}  // namespace so
