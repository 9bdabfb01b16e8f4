// Pages of host memory, for the devices.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace so {

// Fresh pages, zero when first touched, in huge pages where the kernel has them and the block is large. Null when there
// is no room.
void* map_host_pages(std::size_t bytes);
void unmap_host_pages(void* data, std::size_t bytes) noexcept;

// The bytes that this process may still lock; nothing if that is not limited.
std::optional<std::size_t> lockable_bytes();

// Advice on a refusal to pin `bytes`, if the limit on this process's locked memory is below what it would then hold;
// else empty. NVIDIA's driver on Linux does not count what it pins against that limit, but what runs between it and us
// may (a sandbox, a virtual machine's guest layer), so this explains a refusal and foretells none.
std::string lock_limit_advice(std::size_t bytes);

}  // namespace so
