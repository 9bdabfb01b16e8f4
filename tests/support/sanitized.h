// Whether the tests, and the program that they run, are built with a sanitizer. It has a handler of SIGBUS, memory and
// an address space of its own, so tests of those are left out or allow more. Where a test repeats a case many times,
// fewer repetitions do, as the other builds make them all.
#pragma once

namespace so::test {

#ifdef SO_SANITIZED
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace so::test

// A function of a test's own arithmetic that does without a sanitizer's checks, where they take most of its time. It
// calls no function of the program, of which the checks would then be gone.
#define SO_NOT_SANITIZED __attribute__((no_sanitize("address"), no_sanitize("undefined")))
