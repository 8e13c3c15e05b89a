/* Decodes the values of a page: levels, dictionary indices, and values packed by their frame of reference. */
#ifndef WINDROW_VALUES_H
#define WINDROW_VALUES_H

#include <stdint.h>
#include <string.h>

#include "_reader.h"
#include "_runs.h"

/* Checks that all levels, of `width` bits, are `level`. */
static int check_levels(Reader *r, int width, uint64_t level, int64_t count) {
#define ONE(at, v) if (v != level) return DECLINED;
#define RUN(at, many, v) if (v != level) return DECLINED;
    EACH_RUN(width, count, ONE, RUN);
#undef ONE
#undef RUN
    return 0;
}

#define DECLINE_BEYOND(v) if (v >= entries) return DECLINED;
#define CHECK_ONE(at, v) DECLINE_BEYOND(v)
#define CHECK_RUN(at, many, v) DECLINE_BEYOND(v)
#define SCATTER_ONE(at, v) DECLINE_BEYOND(v) out[targets[at]] = dictionary[v];
#define SCATTER_RUN(at, many, v) \
    DECLINE_BEYOND(v)            \
    for (int64_t j = 0; j < many; j++) out[targets[(at) + j]] = dictionary[v];
#define COPY_ONE(at, v) DECLINE_BEYOND(v) out[at] = dictionary[v];
#define COPY_RUN(at, many, v) \
    DECLINE_BEYOND(v)         \
    for (int64_t j = 0; j < many; j++) out[(at) + j] = dictionary[v];

/* Gathers dictionary entries: value i goes to index targets[i] or, without targets, to index i. */
#define LOOK_UP(NAME, WORD)                                                                        \
    static int copy_##NAME(Reader *r, int width, int64_t count, const WORD *restrict dictionary,    \
                           uint64_t entries, WORD *restrict out) {                                 \
        EACH_RUN(width, count, COPY_ONE, COPY_RUN);                                                \
        return 0;                                                                                  \
    }                                                                                              \
    static int look_up_##NAME(Reader *r, int width, int64_t count, const WORD *restrict dictionary, \
                              uint64_t entries, const uint32_t *restrict targets, WORD *restrict out) { \
        if (targets == NULL) return copy_##NAME(r, width, count, dictionary, entries, out);        \
        EACH_RUN(width, count, SCATTER_ONE, SCATTER_RUN);                                          \
        return 0;                                                                                  \
    }

LOOK_UP(1, uint8_t)
LOOK_UP(2, uint16_t)
LOOK_UP(4, uint32_t)
LOOK_UP(8, uint64_t)
typedef struct {
    uint64_t low, high;
} wide_word;
LOOK_UP(16, wide_word)

/* For entries of 0 bytes, where all values are equal to the base: only validates the indices. */
static int check_indices(Reader *r, int width, int64_t count, uint64_t entries) {
    EACH_RUN(width, count, CHECK_ONE, CHECK_RUN);
    return 0;
}

static int look_up(Reader *r, int width, int64_t count, const uint8_t *dictionary, uint64_t entries, int64_t bytes,
                   const uint32_t *targets, uint8_t *out) {
    switch (bytes) {
    case 0: return check_indices(r, width, count, entries);
    case 1: return look_up_1(r, width, count, dictionary, entries, targets, out);
    case 2: return look_up_2(r, width, count, (const uint16_t *)dictionary, entries, targets, (uint16_t *)out);
    case 4: return look_up_4(r, width, count, (const uint32_t *)dictionary, entries, targets, (uint32_t *)out);
    case 8: return look_up_8(r, width, count, (const uint64_t *)dictionary, entries, targets, (uint64_t *)out);
    default: return look_up_16(r, width, count, (const wide_word *)dictionary, entries, targets, (wide_word *)out);
    }
}

/* Stored values can be unaligned, and alias other types. */
typedef uint16_t ANY_ALIGNMENT unaligned2;
typedef uint32_t ANY_ALIGNMENT unaligned4;
typedef uint64_t ANY_ALIGNMENT unaligned8;

/* Values packed per iteration, through a local buffer since `out` can alias `words`. */
enum { BATCH = 64 };

#define PACK_SOME(FROM, TO, COUNT)                                  \
    do {                                                            \
        TO packed[BATCH];                                           \
        for (int64_t j = 0; j < (COUNT); j++) {                     \
            FROM delta = (FROM)(from[i + j] - minimum);             \
            all_bits |= delta;                                      \
            packed[j] = (TO)delta;                                  \
        }                                                           \
        if (targets == NULL)                                        \
            memcpy(to + i, packed, (COUNT) * sizeof(TO));           \
        else                                                        \
            for (int64_t j = 0; j < (COUNT); j++) to[targets[i + j]] = packed[j]; \
    } while (0)

#define PACK(FROM, TO)                                              \
    do {                                                            \
        const FROM *from = (const FROM *)words, minimum = (FROM)base; \
        TO *to = (TO *)out;                                         \
        FROM all_bits = 0;                                          \
        int64_t i = 0;                                              \
        for (; i + BATCH <= count; i += BATCH) PACK_SOME(FROM, TO, BATCH); \
        PACK_SOME(FROM, TO, count - i);                             \
        return all_bits > (TO)~(TO)0 ? DECLINED : 0;                \
    } while (0)

#define SCATTER(WORD)                                               \
    do {                                                            \
        WORD *to = (WORD *)out;                                     \
        for (int64_t i = 0; i < count; i++) to[targets[i]] = ((const WORD *)words)[i]; \
        return 0;                                                   \
    } while (0)

#define SAME(FROM)                                                  \
    do {                                                            \
        for (int64_t i = 0; i < count; i++)                         \
            if (((const FROM *)words)[i] != (FROM)base) return DECLINED; \
        return 0;                                                   \
    } while (0)

/* Frame-of-reference packing: writes each value minus `base` in `bytes` bytes; declines if one does not fit. Value i
 * goes to index targets[i] or, without targets, to index i. */
static int pack(const uint8_t *words, int64_t width, int64_t count, int64_t bytes, uint64_t base,
                const uint32_t *targets, uint8_t *out) {
    switch (width * 8 + bytes) {
    case 8 * 8 + 4: PACK(unaligned8, unaligned4);
    case 8 * 8 + 2: PACK(unaligned8, unaligned2);
    case 8 * 8 + 1: PACK(unaligned8, uint8_t);
    case 8 * 8: SAME(unaligned8);
    case 4 * 8 + 2: PACK(unaligned4, unaligned2);
    case 4 * 8 + 1: PACK(unaligned4, uint8_t);
    case 4 * 8: SAME(unaligned4);
    }
    if (targets == NULL) {
        if (out != words) memcpy(out, words, count * width);
        return 0;
    }
    if (width == 8) SCATTER(unaligned8);
    SCATTER(unaligned4);
}

#endif
