/* Reads bit-packed values, and the hybrid of runs and bit-packed groups that levels and dictionary indices have. */
#ifndef WINDROW_RUNS_H
#define WINDROW_RUNS_H

#include <stdint.h>
#include <string.h>

#include "_reader.h"

static inline uint64_t load8(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

/* Loads a bit-packed value of at most 32 bits near the end, where fewer than 8 bytes can remain. */
static inline uint64_t load_tail(const uint8_t *from, int64_t bytes, int64_t bit, uint64_t mask) {
    uint8_t word[16] = {0};
    int64_t at = bit >> 3, left = bytes - at;
    if (left > 0) memcpy(word, from + at, left > 8 ? 8 : left);
    return (load8(word) >> (bit & 7)) & mask;
}

/* Iterates over the runs of the RLE/bit-packing hybrid; DO_ONE handles a bit-packed value, DO_RUN a repeated one. */
#define EACH_RUN(width, count, DO_ONE, DO_RUN)                                       \
    do {                                                                             \
        const uint64_t mask = ((uint64_t)1 << (width)) - 1;                          \
        int64_t i = 0;                                                               \
        while (i < (count)) {                                                        \
            uint64_t head = read_varint(r);                                          \
            if (r->bad || head >> 33) return DECLINED;                               \
            int64_t many = head & 1 ? (int64_t)(head >> 1) * 8 : (int64_t)(head >> 1); \
            if (many == 0) return DECLINED;                                          \
            if (head & 1) {                                                          \
                int64_t bytes = (int64_t)(head >> 1) * (width), left = r->end - r->at; \
                /* a writer can truncate the padding of the last group, but no more */ \
                if (bytes > left && bytes - left >= (width)) return DECLINED;        \
                if (bytes > left) bytes = left;                                      \
                if (many > (count) - i) many = (count) - i;                          \
                if ((bytes * 8) < many * (width)) return DECLINED;                   \
                /* at width 0 there can be no bytes to load */                       \
                int64_t fast = (width) ? (bytes - 8) * 8 / (width) : 0;              \
                if (fast > many) fast = many;                                        \
                const uint8_t *from = r->at;                                         \
                int64_t j = 0;                                                       \
                uint64_t bit = 0;                                                    \
                for (; j < fast; j++, bit += (width)) {                              \
                    uint64_t v = (load8(from + (bit >> 3)) >> (bit & 7)) & mask;     \
                    DO_ONE(i + j, v)                                                 \
                }                                                                    \
                for (; j < many; j++, bit += (width)) {                              \
                    uint64_t v = load_tail(from, bytes, (int64_t)bit, mask);         \
                    DO_ONE(i + j, v)                                                 \
                }                                                                    \
                r->at += bytes;                                                      \
            } else {                                                                 \
                int bytes = ((width) + 7) / 8;                                       \
                uint64_t v = 0;                                                      \
                if (r->end - r->at < bytes) return DECLINED;                         \
                memcpy(&v, r->at, bytes);                                            \
                r->at += bytes;                                                      \
                if (many > (count) - i) many = (count) - i;                          \
                DO_RUN(i, many, v)                                                   \
            }                                                                        \
            i += many;                                                               \
        }                                                                            \
    } while (0)

#endif
