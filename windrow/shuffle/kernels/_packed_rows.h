/* Encodes values by their frame of reference, packs columns into words, and scatters rows. */
#ifndef WINDROW_PACKED_ROWS_H
#define WINDROW_PACKED_ROWS_H

#include "_types.h"

/* --- frame-of-reference encoding -------------------------------------------------------- */


/* Rows per batch: their values stay in the L1 cache between two passes. */
enum { BATCH_ROWS = 512 };

#define RANGE(WORD)                                                \
    do {                                                           \
        const WORD *at = (const WORD *)words;                      \
        WORD low = at[0], high = at[0];                            \
        for (int64_t i = 1; i < count; i++) {                      \
            WORD word = at[i];                                     \
            low = word < low ? word : low;                         \
            high = word > high ? word : high;                      \
        }                                                          \
        range[0] = low;                                            \
        range[1] = high;                                           \
    } while (0)

/* Minimum and maximum of one or more values of `width` bytes (1, 2, 4 or 8), as signed integers. */
EXPORT_VECTORS void windrow_range(int64_t width, int64_t count, const void *words, int64_t *range) {
    switch (width) {
    case 1: RANGE(int8_t); break;
    case 2: RANGE(signed2); break;
    case 4: RANGE(signed4); break;
    case 8: RANGE(signed8); break;
    }
}

#define NARROW(FROM, TO)                                           \
    do {                                                           \
        const FROM *from = (const FROM *)source, less = (FROM)base; \
        TO *to = (TO *)out;                                        \
        FROM all = 0;                                              \
        for (int64_t i = 0; i < count; i++) {                      \
            FROM more = (FROM)(from[i] - less);                    \
            all |= more;                                           \
            to[i] = (TO)more;                                      \
        }                                                          \
        return all > (TO)~(TO)0;                                   \
    } while (0)

#define CHECK_SAME(FROM)                                           \
    do {                                                           \
        const FROM *from = (const FROM *)source, less = (FROM)base; \
        FROM all = 0;                                              \
        for (int64_t i = 0; i < count; i++) all |= (FROM)(from[i] - less); \
        return all != 0;                                           \
    } while (0)

/* Encode: write value - base in `bytes` bytes, fewer than `width`; returns 1 if a value does not fit. */
VECTORS static int narrow(int64_t width, int64_t bytes, uint64_t base, int64_t count, const char *source, char *out) {
    switch (width * 8 + bytes) {
    case 8 * 8 + 4: NARROW(unaligned8, unaligned4);
    case 8 * 8 + 2: NARROW(unaligned8, unaligned2);
    case 8 * 8 + 1: NARROW(unaligned8, uint8_t);
    case 8 * 8: CHECK_SAME(unaligned8);
    case 4 * 8 + 2: NARROW(unaligned4, unaligned2);
    case 4 * 8 + 1: NARROW(unaligned4, uint8_t);
    case 4 * 8: CHECK_SAME(unaligned4);
    case 2 * 8 + 1: NARROW(unaligned2, uint8_t);
    case 2 * 8: CHECK_SAME(unaligned2);
    default: CHECK_SAME(uint8_t);
    }
}

#define CONVERT(FROM, TO, MAKE)                                    \
    do {                                                           \
        const FROM *from = (const FROM *)source;                   \
        TO *to = (TO *)out;                                        \
        for (int64_t i = 0; i < count; i++) to[i] = (TO)(MAKE);    \
    } while (0)

/* Decode: write value + base in `width` bytes. */
VECTORS static void widen(int64_t width, int64_t bytes, uint64_t base, int64_t count, const char *source, char *out) {
    switch (width * 8 + bytes) {
    case 8 * 8 + 4: CONVERT(unaligned4, unaligned8, from[i] + base); break;
    case 8 * 8 + 2: CONVERT(unaligned2, unaligned8, from[i] + base); break;
    case 8 * 8 + 1: CONVERT(uint8_t, unaligned8, from[i] + base); break;
    case 8 * 8: CONVERT(char, unaligned8, ((void)from, base)); break;
    case 4 * 8 + 2: CONVERT(unaligned2, unaligned4, from[i] + base); break;
    case 4 * 8 + 1: CONVERT(uint8_t, unaligned4, from[i] + base); break;
    case 4 * 8: CONVERT(char, unaligned4, ((void)from, base)); break;
    case 2 * 8 + 1: CONVERT(uint8_t, unaligned2, from[i] + base); break;
    case 2 * 8: CONVERT(char, unaligned2, ((void)from, base)); break;
    default: CONVERT(char, uint8_t, ((void)from, base));
    }
}

/* A column of a map output: its address, packed bytes per value, and base. */
typedef struct {
    int64_t address, bytes, base;
} packed_column;

/* Values of a column in full width: a pointer into the column, or to `buffer` if they had to be decoded. */
static const char *values_of(const packed_column *column, int64_t width, int64_t first, int64_t count, char *buffer) {
    const char *values = (const char *)(intptr_t)column->address + first * column->bytes;
    if (column->bytes == width) return values;
    widen(width, column->bytes, (uint64_t)column->base, count, values, buffer);
    return buffer;
}

/* --- scattering ------------------------------------------------------------------------- */

/* Scatter targets are not in the L1 cache, so each is prefetched this many rows ahead. */
enum { PREFETCH_ROWS = 16 };

#define SCATTER(ROW, VALUE)                                                   \
    do {                                                                      \
        ROW *to = (ROW *)out;                                                 \
        for (int64_t i = 0; i < count; i++) {                                 \
            if (i + PREFETCH_ROWS < count) PREFETCH_TO_WRITE(to + targets[i + PREFETCH_ROWS]); \
            to[targets[i]] = VALUE;                                           \
        }                                                                     \
    } while (0)
/* Rows that stay together, as the tokens of a document do, are copied this many at a time. */
enum { TOGETHER = 16 };

static inline int are_together(const uint32_t *targets) {
    uint32_t differs = targets[TOGETHER - 1] - targets[0] - (TOGETHER - 1);
    if (differs) return 0;
    for (uint32_t i = 1; i < TOGETHER; i++) differs |= targets[i] ^ (targets[0] + i);
    return !differs;
}

#define SCATTER_WORDS(WORD)                                                   \
    do {                                                                      \
        WORD *to = (WORD *)out;                                               \
        const WORD *from = (const WORD *)source;                              \
        for (int64_t i = 0; i < count; i++) {                                 \
            for (; i + TOGETHER <= count && are_together(targets + i); i += TOGETHER) \
                memcpy(to + targets[i], from + i, TOGETHER * sizeof(WORD));   \
            const int64_t stop = i + TOGETHER < count ? i + TOGETHER : count; \
            for (; i < stop; i++) {                                           \
                if (i + PREFETCH_ROWS < count) PREFETCH_TO_WRITE(to + targets[i + PREFETCH_ROWS]); \
                to[targets[i]] = from[i];                                     \
            }                                                                 \
            i--;                                                              \
        }                                                                     \
    } while (0)

/* Put row i of `source` at row targets[i] of `out`; rows have `width` bytes. */
static void scatter(int64_t width, int64_t count, const char *source, const uint32_t *targets, char *out) {
    switch (width) {
    case 1: SCATTER_WORDS(uint8_t); break;
    case 2: SCATTER_WORDS(unaligned2); break;
    case 4: SCATTER_WORDS(unaligned4); break;
    case 8: SCATTER_WORDS(unaligned8); break;
    case 16: SCATTER_WORDS(unaligned16); break;
    default:
        for (int64_t i = 0; i < count; i++) memcpy(out + targets[i] * width, source + i * width, width);
    }
}

/* --- packed row layout ------------------------------------------------------------------ */

/* The cost of a scatter is cache lines, not bytes. So columns are packed into 64-bit words, as many as
 * fit, and up to four words (lanes) are scattered together: 8, 16 or 32 bytes per row. */

/* A column in a word: its number, bit offset, bytes, and base. */
typedef struct {
    int64_t column, shift, bytes, base;
} member;

/* The members of word k are those from starts[k] to starts[k + 1]; `lanes` words are scattered together. */
typedef struct {
    int64_t words, lanes;
    const int64_t *starts;
    const member *members;
} layout;

enum { MAX_LANES = 4, LINE = 64 };

/* The words of a batch of rows, contiguous for each lane. */
typedef uint64_t lane_buffers[MAX_LANES][BATCH_ROWS];

#define PACK(FROM, AS)                                                         \
    do {                                                                       \
        const FROM *from = (const FROM *)source;                               \
        if (first)                                                             \
            for (int64_t i = 0; i < count; i++) to[i] = (uint64_t)(AS) << shift; \
        else                                                                   \
            for (int64_t i = 0; i < count; i++) to[i] |= (uint64_t)(AS) << shift; \
    } while (0)

/* Put a column, encoded in `bytes` (fewer than 8) per value, into its words. The first column of a word overwrites
 * it. `more` is added to each value, if the base of the column differs from that of the source. */
VECTORS static void pack_column(int64_t bytes, const char *source, uint64_t more, uint64_t mask, int64_t shift,
                                int first, int64_t count, uint64_t *restrict to) {
    switch (more ? -bytes : bytes) {
    case 1: PACK(uint8_t, from[i]); break;
    case 2: PACK(unaligned2, from[i]); break;
    case 4: PACK(unaligned4, from[i]); break;
    case -1: PACK(uint8_t, (from[i] + more) & mask); break;
    case -2: PACK(unaligned2, (from[i] + more) & mask); break;
    case -4: PACK(unaligned4, (from[i] + more) & mask); break;
    default: PACK(char, ((void)from, more & mask));
    }
}

/* The same for values in full width, from each of which `less` is subtracted; returns 1 if one does not fit. */
#define PACK_CHECKED(FROM)                                                     \
    do {                                                                       \
        FROM all = 0;                                                          \
        PACK(FROM, (all |= (FROM)(from[i] - (FROM)less), (FROM)(from[i] - (FROM)less))); \
        return (all & ~mask) != 0;                                             \
    } while (0)

VECTORS static int pack_column_checked(int64_t width, const char *source, uint64_t less, uint64_t mask, int64_t shift,
                                       int first, int64_t count, uint64_t *restrict to) {
    switch (width) {
    case 1: PACK_CHECKED(uint8_t);
    case 2: PACK_CHECKED(unaligned2);
    case 4: PACK_CHECKED(unaligned4);
    default: PACK_CHECKED(unaligned8);
    }
}

#define UNPACK(FROM, TO)                                                       \
    do {                                                                       \
        TO *to = (TO *)out;                                                    \
        for (int64_t i = 0; i < count; i++) to[i] = (TO)((FROM)(from[i] >> shift) + base); \
    } while (0)

/* Extract a column of `bytes` per value from its words, add `base`, and write `width` bytes per value. */
VECTORS static void unpack_column(int64_t bytes, int64_t width, uint64_t base, int64_t shift, int64_t count,
                                  const uint64_t *restrict from, char *restrict out) {
    switch (width * 8 + bytes) {
    case 8 * 8 + 8: UNPACK(uint64_t, unaligned8); break;
    case 8 * 8 + 4: UNPACK(uint32_t, unaligned8); break;
    case 8 * 8 + 2: UNPACK(uint16_t, unaligned8); break;
    case 8 * 8 + 1: UNPACK(uint8_t, unaligned8); break;
    case 4 * 8 + 4: UNPACK(uint32_t, unaligned4); break;
    case 4 * 8 + 2: UNPACK(uint16_t, unaligned4); break;
    case 4 * 8 + 1: UNPACK(uint8_t, unaligned4); break;
    case 2 * 8 + 2: UNPACK(uint16_t, unaligned2); break;
    case 2 * 8 + 1: UNPACK(uint8_t, unaligned2); break;
    case 1 * 8 + 1: UNPACK(uint8_t, uint8_t); break;
    default: widen(width, 0, base, count, NULL, out);
    }
}

/* Prefetch memory that is read or written next. Each batch visits all columns, a pattern that the hardware
 * prefetcher does not predict. */
static void prefetch(const char *at, int64_t bytes) {
    for (int64_t k = 0; k < bytes; k += LINE) PREFETCH(at + k);
}

typedef struct {
    uint64_t a, b;
} row2;
typedef struct {
    uint64_t a, b, c, d;
} row4;

/* The words per row in scratch memory: 1, 2 or 4, since moving three is no faster than moving four. */
static int64_t row_words(int64_t words) { return words == 3 ? MAX_LANES : words; }

/* Scatter: put the words of row i at row targets[i]. */
static void scatter_packed(int64_t words, int64_t count, const char *const *each, const uint32_t *targets, char *out) {
    const unaligned8 *a = (const unaligned8 *)each[0], *b = (const unaligned8 *)each[1];
    const unaligned8 *c = (const unaligned8 *)each[2], *d = (const unaligned8 *)each[3];
    switch (words) {
    case 1: scatter(sizeof *a, count, each[0], targets, out); break;
    case 2: SCATTER(row2, ((row2){a[i], b[i]})); break;
    default: SCATTER(row4, ((row4){a[i], b[i], c[i], d[i]}));
    }
}

/* Split rows of words into one array per lane. */
static void split_lanes(int64_t words, int64_t count, const char *rows, uint64_t *const *to) {
    const row2 *two = (const row2 *)rows;
    const row4 *four = (const row4 *)rows;
    uint64_t *restrict a = to[0], *restrict b = to[1], *restrict c = to[2], *restrict d = to[3];
    switch (words) {
    case 1: memcpy(a, rows, count * sizeof *a); break;
    case 2:
        for (int64_t i = 0; i < count; i++) {
            a[i] = two[i].a;
            b[i] = two[i].b;
        }
        break;
    default:
        for (int64_t i = 0; i < count; i++) {
            row4 row = four[i];
            a[i] = row.a;
            b[i] = row.b;
            c[i] = row.c;
            d[i] = row.d;
        }
    }
}

static uint64_t mask_of(const member *column) {
    return column->bytes == 8 ? ~(uint64_t)0 : ((uint64_t)1 << 8 * column->bytes) - 1;
}

/* The number of lanes from `word` on; fewer than how->lanes for the last words. */
static int64_t lanes_from(const layout *how, int64_t word) {
    return how->words - word < how->lanes ? how->words - word : how->lanes;
}

/* Unpack rows: column k goes to outs[k * stride], after `done` rows, in `width` bytes per value. A `width` of 0
 * leaves values packed, without adding the base. */
static void unpack_rows(const layout *how, int64_t word, int64_t count, const char *rows, int64_t width, int64_t done,
                        const int64_t *outs, int64_t stride) {
    lane_buffers buffers;
    uint64_t *to[MAX_LANES];
    const int64_t there = lanes_from(how, word), stop = how->starts[word + there];
    for (int k = 0; k < MAX_LANES; k++) to[k] = buffers[k];
    split_lanes(row_words(there), count, rows, to);
    for (int64_t k = 0; k < there; k++)
        for (int64_t m = how->starts[word + k]; m < how->starts[word + k + 1]; m++) {
            const member *own = how->members + m;
            const int64_t bytes = width ? width : own->bytes;
            if (m + 1 < stop) {
                const int64_t next = width ? width : own[1].bytes;
                prefetch((const char *)(intptr_t)outs[own[1].column * stride] + done * next, count * next);
            }
            if (bytes)
                unpack_column(own->bytes, bytes, width ? (uint64_t)own->base : 0, own->shift, count, buffers[k],
                              (char *)(intptr_t)outs[own->column * stride] + done * bytes);
        }
}

#endif
