/* What C11 does not have, or compilers do differently: GCC, Clang and MSVC, on 64-bit systems. No other file uses it. */
#ifndef WINDROW_COMPILER_H
#define WINDROW_COMPILER_H

#include <stdint.h>

/* Functions that Python calls. */
#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* Buffers can have any alignment, and any element type. MSVC has no rule about either. */
#if defined(_MSC_VER) && !defined(__clang__)
#define ANY_ALIGNMENT
#define MAY_ALIAS
#else
#define ANY_ALIGNMENT __attribute__((aligned(1), may_alias))
#define MAY_ALIAS __attribute__((may_alias))
#endif

/* Functions that are compiled once for each constant that they are called with. */
#if defined(_MSC_VER) && !defined(__clang__)
#define ALWAYS_INLINE static __forceinline
#else
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#endif

/* Loops over values get AVX-512 and AVX2 versions, chosen at load time; they take a fraction of the time. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#if !defined(__clang__) && __GNUC__ >= 12
#define VECTORS __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define VECTORS __attribute__((target_clones("avx2", "default")))
#endif
#endif
#endif
#ifndef VECTORS
#define VECTORS
#endif
/* Clang does not export what has several versions. */
#if defined(__clang__)
#define EXPORT_VECTORS EXPORT
#else
#define EXPORT_VECTORS EXPORT VECTORS
#endif

/* SSE2 is part of x86-64. */
#if defined(__SSE2__) || (defined(_MSC_VER) && defined(_M_X64))
#define HAS_SSE2 1
#include <emmintrin.h>
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
#if defined(_M_X64)
#define PREFETCH(at) _mm_prefetch((const char *)(at), _MM_HINT_T0)
#else
#define PREFETCH(at) __prefetch((const void *)(at))
#endif
#define PREFETCH_TO_WRITE(at) PREFETCH(at)

/* The number of zeros below the lowest one; the argument is not 0. */
static inline int count_trailing_zeros(uint64_t bits) {
    unsigned long found;
    _BitScanForward64(&found, bits);
    return (int)found;
}

static inline int count_trailing_zeros4(uint32_t bits) { return count_trailing_zeros(bits); }

/* The upper half of a product. */
static inline uint64_t multiply_high(uint64_t a, uint64_t b) { return __umulh(a, b); }

#else
#define PREFETCH(at) __builtin_prefetch(at)
#define PREFETCH_TO_WRITE(at) __builtin_prefetch(at, 1)

static inline int count_trailing_zeros(uint64_t bits) { return __builtin_ctzll(bits); }

static inline int count_trailing_zeros4(uint32_t bits) { return __builtin_ctz(bits); }

__extension__ typedef unsigned __int128 uint128;
static inline uint64_t multiply_high(uint64_t a, uint64_t b) { return (uint64_t)(((uint128)a * b) >> 64); }
#endif

#endif
