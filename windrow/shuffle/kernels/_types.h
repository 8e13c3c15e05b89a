/* What the kernels share: unaligned words, and versions of a function for wider vectors. */
#ifndef WINDROW_TYPES_H
#define WINDROW_TYPES_H

#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* Arrow buffers can have any alignment, and any element type. */
#define UNALIGNED __attribute__((aligned(1), may_alias))

typedef uint16_t UNALIGNED unaligned2;
typedef uint32_t UNALIGNED unaligned4;
typedef uint64_t UNALIGNED unaligned8;
typedef int16_t UNALIGNED signed2;
typedef int32_t UNALIGNED signed4;
typedef int64_t UNALIGNED signed8;
/* of unaligned members, because an attribute cannot lower the alignment of a struct */
typedef struct {
    unaligned8 low, high;
} __attribute__((may_alias)) unaligned16;
typedef int32_t UNALIGNED offset4;
typedef int64_t UNALIGNED offset8;

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

#endif
