/* What the kernels share: unaligned words, which alias other types. */
#ifndef WINDROW_TYPES_H
#define WINDROW_TYPES_H

#include <stdint.h>
#include <string.h>

#include "../../core/_compiler.h"

typedef uint16_t ANY_ALIGNMENT unaligned2;
typedef uint32_t ANY_ALIGNMENT unaligned4;
typedef uint64_t ANY_ALIGNMENT unaligned8;
typedef int16_t ANY_ALIGNMENT signed2;
typedef int32_t ANY_ALIGNMENT signed4;
typedef int64_t ANY_ALIGNMENT signed8;
/* of unaligned members, because an attribute cannot lower the alignment of a struct */
typedef struct {
    unaligned8 low, high;
} MAY_ALIAS unaligned16;
typedef int32_t ANY_ALIGNMENT offset4;
typedef int64_t ANY_ALIGNMENT offset8;

#endif
