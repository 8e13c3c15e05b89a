/* The kernels that group and place rows; windrow/shuffle/kernels/native.py calls them through ctypes.
 *
 * Every exported function has a NumPy twin, and tests compare the two bit for bit. No function allocates,
 * keeps state, or uses the Python API, so all of them run without the GIL.
 */
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
typedef struct {
    uint64_t low, high;
} UNALIGNED unaligned16;
typedef int32_t UNALIGNED offset4;
typedef int64_t UNALIGNED offset8;

/* --- frame-of-reference encoding -------------------------------------------------------- */

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
EXPORT VECTORS void windrow_range(int64_t width, int64_t count, const void *words, int64_t *range) {
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
            if (i + PREFETCH_ROWS < count) __builtin_prefetch(to + targets[i + PREFETCH_ROWS], 1); \
            to[targets[i]] = VALUE;                                           \
        }                                                                     \
    } while (0)
#define SCATTER_WORDS(WORD) SCATTER(WORD, ((const WORD *)source)[i])

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
    for (int64_t k = 0; k < bytes; k += LINE) __builtin_prefetch(at + k);
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

/* --- grouping --------------------------------------------------------------------------- */

#define COUNT(WORD)                                                              \
    for (int64_t i = 0; i < count; i++) {                                        \
        int64_t run = (int64_t)((const WORD *)runs)[i] - first;                  \
        if (run >= 0 && run < run_count) next[run + 1]++;                        \
    }

#define PLACE(WORD)                                                              \
    for (int64_t i = 0; i < count; i++) {                                        \
        int64_t run = (int64_t)((const WORD *)runs)[i] - first;                  \
        targets[i] = (uint32_t)(run >= 0 && run < run_count ? next[run]++ : left_out++); \
    }

/* Sort entries by run, stably: targets[i] is the rank of entry i; entries of other runs come last. `starts` and `next`
 * have run_count + 1 elements; starts[k] is the rank of the first entry of run k. */
EXPORT void windrow_group(int64_t width, int64_t count, const void *runs, int64_t first, int64_t run_count,
                          uint32_t *targets, int64_t *starts, int64_t *next) {
    memset(next, 0, (run_count + 1) * sizeof *next);
    if (width == 2) COUNT(uint16_t) else COUNT(uint32_t)
    for (int64_t k = 0; k < run_count; k++) next[k + 1] += next[k];
    memcpy(starts, next, (run_count + 1) * sizeof *next);
    int64_t left_out = starts[run_count];
    if (width == 2) PLACE(uint16_t) else PLACE(uint32_t)
}

/* Encode the contiguous values of all map outputs into each one's memory; returns 1 if a value does not fit. */
static int copy_out(int64_t width, int64_t bytes, int64_t base, const char *values, int64_t outputs,
                    const int64_t *rows, const int64_t *outs) {
    for (int64_t output = 0; output < outputs; output++) {
        char *out = (char *)(intptr_t)outs[output];
        if (bytes == width)
            memcpy(out, values, width * rows[output]);
        else if (narrow(width, bytes, (uint64_t)base, rows[output], values, out))
            return 1;
        values += width * rows[output];
    }
    return 0;
}

/* A column whose rows are in order: the address of its values, bytes per value, and the address of its `outs`. */
typedef struct {
    int64_t values, bytes, outs;
} ordered;

/* Copy contiguous columns, already packed, to the map outputs. */
EXPORT void windrow_copy_packed(int64_t columns, const ordered *each, int64_t outputs, const int64_t *rows) {
    for (int64_t k = 0; k < columns; k++) {
        const char *values = (const char *)(intptr_t)each[k].values;
        const int64_t *outs = (const int64_t *)(intptr_t)each[k].outs;
        for (int64_t output = 0; output < outputs; output++) {
            const int64_t size = each[k].bytes * rows[output];
            memcpy((char *)(intptr_t)outs[output], values, size);
            values += size;
        }
    }
}

/* Pack rows of full-width columns into the words from `word` on; each[k] is set to the values of lane k.
 * Returns a column whose values do not fit, or -1. */
static int64_t pack_rows_checked(const layout *how, int64_t word, int64_t width, int64_t done, int64_t count,
                                 const int64_t *sources, lane_buffers buffers, const char **each) {
    const int64_t there = lanes_from(how, word), stop = how->starts[word + there];
    for (int64_t k = 0; k < there; k++) {
        const int64_t begin = how->starts[word + k];
        each[k] = (const char *)buffers[k];
        for (int64_t m = begin; m < how->starts[word + k + 1]; m++) {
            const member *own = how->members + m;
            const char *from = (const char *)(intptr_t)sources[own->column] + done * width;
            if (m + 1 < stop)
                prefetch((const char *)(intptr_t)sources[own[1].column] + done * width, count * width);
            if (own->bytes == 8)
                each[k] = from;
            else if (own->bytes == width)
                pack_column(width, from, 0, 0, own->shift, m == begin, count, buffers[k]);
            /* a column of 0 bytes that shares the word of an 8-byte column is only checked */
            else if (pack_column_checked(width, from, (uint64_t)own->base, mask_of(own), own->shift,
                                         m == begin || each[k] != (const char *)buffers[k], count, buffers[k]))
                return own->column;
        }
    }
    for (int64_t k = there; k < MAX_LANES; k++) each[k] = each[0];
    return -1;
}

/* Scatter and pack: row i of each column goes to row targets[i] of its concatenated map outputs; the arguments are
 * those of native.group_columns. Rows are scattered into `scratch`, which stays in the cache, then copied in order,
 * so each page of a map output is written once. Returns a column whose values do not fit its packing, or -1. */
EXPORT int64_t windrow_group_joined(int64_t columns, int64_t width, int64_t count, const int64_t *sources,
                                    const int64_t *packing, const uint32_t *targets, char *scratch, int64_t words,
                                    int64_t lanes, const int64_t *starts, const member *members, int64_t outputs,
                                    const int64_t *rows, const int64_t *outs) {
    const layout how = {words, lanes, starts, members};
    lane_buffers buffers;
    const char *each[MAX_LANES];
    for (int64_t word = 0; word < words; word += lanes) {
        const int64_t row = row_words(lanes_from(&how, word));
        for (int64_t first = 0; first < count; first += BATCH_ROWS) {
            const int64_t some = count - first < BATCH_ROWS ? count - first : BATCH_ROWS;
            const int64_t overflow = pack_rows_checked(&how, word, width, first, some, sources, buffers, each);
            if (overflow >= 0) return overflow;
            scatter_packed(row, some, each, targets + first, scratch);
        }
        const char *from = scratch;
        for (int64_t output = 0; output < outputs; output++)
            for (int64_t first = 0; first < rows[output]; first += BATCH_ROWS) {
                const int64_t some = rows[output] - first < BATCH_ROWS ? rows[output] - first : BATCH_ROWS;
                unpack_rows(&how, word, some, from, 0, first, outs + output, outputs);
                from += some * row * sizeof(uint64_t);
            }
    }
    for (int64_t column = 0; column < columns && !words; column++) {
        scatter(width, count, (const char *)(intptr_t)sources[column], targets, scratch);
        if (copy_out(width, packing[2 * column], packing[2 * column + 1], scratch, outputs, rows,
                     outs + column * outputs))
            return column;
    }
    return -1;
}

/* Division by an invariant: multiplication by the reciprocal, exact for all 32-bit numbers. */
static inline uint64_t inverse(uint32_t divisor) { return divisor > 1 ? UINT64_MAX / divisor + 1 : 0; }

static inline uint32_t divide(uint32_t number, uint64_t inverted) {
    return inverted ? (uint32_t)(((unsigned __int128)inverted * number) >> 64) : number;
}

/* Find the run, and the place within it, of rows given by their position in the epoch; the arguments are those of
 * native.assign. Run r of shard s has the id ids[r + base of s]. Returns the number of rows in `rest`. */
EXPORT int64_t windrow_assign(int64_t count, const int64_t *rows, int64_t first_row, int64_t stop_row,
                              int64_t step_rows, int64_t batch_rows, int64_t run_rows, const int64_t *shards,
                              int64_t id_bytes, int64_t id_count, const void *ids, int64_t none, void *runs,
                              uint32_t *places, uint32_t *rest) {
    const uint64_t step = inverse((uint32_t)step_rows), batch = inverse((uint32_t)batch_rows);
    const uint64_t run = inverse((uint32_t)run_rows);
    int64_t others = 0;
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] < first_row || rows[i] >= stop_row) {
            rest[others++] = (uint32_t)i;
            continue;
        }
        const uint32_t ahead = (uint32_t)(rows[i] - first_row), steps = divide(ahead, step);
        const uint32_t within = ahead - steps * (uint32_t)step_rows, shard = divide(within, batch);
        const uint32_t place = within - shard * (uint32_t)batch_rows + steps * (uint32_t)batch_rows;
        const uint32_t of_stream = divide(place, run);
        const int64_t *own = shards + 3 * shard;
        const uint64_t at = (uint64_t)(of_stream + own[0]);
        const int64_t before = of_stream == own[1] ? own[2] : 0;
        int64_t id = none;
        if (at < (uint64_t)id_count) id = id_bytes == 2 ? ((const uint16_t *)ids)[at] : ((const uint32_t *)ids)[at];
        if (id_bytes == 2) ((uint16_t *)runs)[i] = (uint16_t)id;
        else ((uint32_t *)runs)[i] = (uint32_t)id;
        places[i] = place - of_stream * (uint32_t)run_rows - (uint32_t)before;
    }
    return others;
}

/* The number of places, all in [0, rows) and distinct, else -1; `seen` has a byte per row. */
EXPORT int64_t windrow_check_places(int64_t parts, const int64_t *places, const int64_t *counts, int64_t rows,
                                    uint8_t *seen) {
    int64_t distinct = 0;
    memset(seen, 0, rows);
    for (int64_t part = 0; part < parts; part++) {
        const uint32_t *at = (const uint32_t *)(intptr_t)places[part];
        for (int64_t i = 0; i < counts[part]; i++) {
            if (at[i] >= (uint64_t)rows || seen[at[i]]) return -1;
            seen[at[i]] = 1;
        }
        distinct += counts[part];
    }
    return distinct;
}

/* Pack rows of a part, already encoded, into the words from `word` on; each[k] is set to the values of lane k. */
static void pack_rows(const layout *how, int64_t word, int64_t done, int64_t count, const packed_column *sources,
                      int64_t parts, lane_buffers buffers, const char **each) {
    enum { PREFETCH_COLUMNS = 2 }; /* columns are prefetched this many ahead */
    const int64_t there = lanes_from(how, word), stop = how->starts[word + there];
    for (int64_t k = 0; k < there; k++) {
        const int64_t begin = how->starts[word + k];
        each[k] = (const char *)buffers[k];
        for (int64_t m = begin; m < how->starts[word + k + 1]; m++) {
            const member *own = how->members + m;
            const packed_column *source = sources + own->column * parts;
            const char *from = (const char *)(intptr_t)source->address + done * source->bytes;
            if (m + PREFETCH_COLUMNS < stop) {
                const packed_column *next = sources + own[PREFETCH_COLUMNS].column * parts;
                prefetch((const char *)(intptr_t)next->address + done * next->bytes, count * next->bytes);
            }
            if (source->bytes == 8)
                each[k] = from;
            else if (own->bytes || m == begin)
                pack_column(source->bytes, from, (uint64_t)(source->base - own->base), mask_of(own), own->shift,
                            m == begin, count, buffers[k]);
        }
    }
    for (int64_t k = there; k < MAX_LANES; k++) each[k] = each[0];
}

/* Scatter and unpack: put the rows of all parts at their places; the arguments are those of native.place.
 *
 * Rows are scattered into `scratch`, which stays in the cache, then copied out in order, so each fresh cache line is
 * written once. Columns are moved in `words` packed words, or one by one if that is 0. Rows of a cache line or more
 * need no `scratch`. */
EXPORT void windrow_place_joined(int64_t parts, const packed_column *sources, const int64_t *firsts,
                                 const int64_t *places, const int64_t *counts, int64_t columns, int64_t width,
                                 int64_t rows, char *scratch, int64_t words, int64_t lanes, const int64_t *starts,
                                 const member *members, const int64_t *outs) {
    const layout how = {words, lanes, starts, members};
    lane_buffers buffers;
    const char *each[MAX_LANES];
    for (int64_t word = 0; word < words; word += lanes) {
        const int64_t row = row_words(lanes_from(&how, word));
        for (int64_t p = 0; p < parts; p++) {
            const uint32_t *at = (const uint32_t *)(intptr_t)places[p];
            for (int64_t first = 0; first < counts[p]; first += BATCH_ROWS) {
                const int64_t some = counts[p] - first < BATCH_ROWS ? counts[p] - first : BATCH_ROWS;
                pack_rows(&how, word, firsts[p] + first, some, sources + p, parts, buffers, each);
                scatter_packed(row, some, each, at + first, scratch);
            }
        }
        for (int64_t first = 0; first < rows; first += BATCH_ROWS)
            unpack_rows(&how, word, rows - first < BATCH_ROWS ? rows - first : BATCH_ROWS,
                        scratch + first * row * sizeof(uint64_t), width, first, outs, 1);
    }
    for (int64_t column = 0; column < columns && !words; column++) {
        char *out = (char *)(intptr_t)outs[column], *to = scratch ? scratch : out;
        for (int64_t p = 0; p < parts; p++) {
            const packed_column *source = sources + column * parts + p;
            const uint32_t *at = (const uint32_t *)(intptr_t)places[p];
            const int64_t most = source->bytes == width ? counts[p] : BATCH_ROWS;
            for (int64_t first = 0; first < counts[p]; first += most) {
                const int64_t some = counts[p] - first < most ? counts[p] - first : most;
                scatter(width, some, values_of(source, width, firsts[p] + first, some, (char *)buffers[0]),
                        at + first, to);
            }
        }
        if (scratch) memcpy(out, scratch, width * rows);
    }
}

static inline void copy_bytes(char *to, const char *from, int64_t count) {
    if (count >= 16) {
        memcpy(to, from, count);
    } else if (count >= 8) {
        uint64_t head, tail;
        memcpy(&head, from, 8);
        memcpy(&tail, from + count - 8, 8);
        memcpy(to, &head, 8);
        memcpy(to + count - 8, &tail, 8);
    } else {
        for (int64_t i = 0; i < count; i++) to[i] = from[i];
    }
}

#define OFFSETS(WORD)                                                             \
    WORD *ends = (WORD *)out_offsets + 1;                                         \
    for (int64_t part = 0; part < parts; part++) {                                \
        const WORD *at = (const WORD *)(intptr_t)offsets[part];                   \
        const uint32_t *to = (const uint32_t *)(intptr_t)targets[part];           \
        if (counts[part]) wrong |= at[0] < 0 || at[counts[part]] > sizes[part] ? -1 : 0; \
        for (int64_t i = 0; i < counts[part]; i++) {                              \
            uint32_t row = to[i] - (uint32_t)first;                               \
            int64_t bytes = (int64_t)((uint64_t)at[i + 1] - (uint64_t)at[i]);     \
            wrong |= bytes;                                                       \
            if (row < (uint64_t)rows) ends[row] = (WORD)bytes;                    \
        }                                                                         \
    }                                                                             \
    if (wrong < 0) return -1;                                                     \
    for (int64_t k = 0; k < rows; k++) ends[k] = (WORD)(total += ends[k]);

/* Compute the offsets of text whose row i of each part goes to row targets[i] - first; rows outside [0, rows) are
 * dropped. `sizes` has the bytes of the text of each part. Writes rows + 1 offsets of `width` bytes. Returns the total
 * bytes, which can exceed what 4-byte offsets can represent, or -1 if offsets decrease or are outside the text. */
EXPORT int64_t windrow_checked_offsets(int64_t width, int64_t parts, const int64_t *offsets, const int64_t *sizes,
                                       const int64_t *targets, const int64_t *counts, int64_t first, int64_t rows,
                                       void *out_offsets) {
    int64_t total = 0, wrong = 0;
    memset(out_offsets, 0, (rows + 1) * width);
    if (width == 4) {
        OFFSETS(offset4)
    } else {
        OFFSETS(offset8)
    }
    return total;
}

#define COPY_TEXT(WORD)                                                           \
    for (int64_t part = 0; part < parts; part++) {                                \
        const WORD *at = (const WORD *)(intptr_t)offsets[part];                   \
        const char *text = (const char *)(intptr_t)texts[part];                   \
        const uint32_t *to = (const uint32_t *)(intptr_t)targets[part];           \
        for (int64_t i = 0; i < counts[part]; i++) {                              \
            uint32_t row = to[i] - (uint32_t)first;                               \
            if (row < (uint64_t)rows)                                             \
                copy_bytes(out + ((const WORD *)out_offsets)[row], text + at[i], at[i + 1] - at[i]); \
        }                                                                         \
    }

/* Copy the bytes of the text, after windrow_checked_offsets. */
EXPORT void windrow_text(int64_t width, int64_t parts, const int64_t *offsets, const int64_t *texts,
                         const int64_t *targets, const int64_t *counts, int64_t first, int64_t rows,
                         const void *out_offsets, char *out) {
    if (width == 4) COPY_TEXT(offset4) else COPY_TEXT(offset8)
}

/* --- positions -------------------------------------------------------------------------- */

enum { ROUNDS = 6, LANES = 64, BLOCK = 8 * LANES };

/* All rounds for LANES values, a count that the compiler can vectorize. */
VECTORS
static void mix_lanes(uint32_t *restrict values, const uint32_t *restrict keys, const uint32_t *restrict multipliers,
                      uint32_t mask, int shift) {
    for (int k = 0; k < ROUNDS; k++) {
        const uint32_t key = keys[k], multiplier = multipliers[k];
        for (int i = 0; i < LANES; i++) {
            uint32_t x = ((values[i] ^ key) * multiplier) & mask;
            values[i] = x ^ (x >> shift);
        }
    }
}

/* Cycle walking with at most 32 bits: a block of rows per pass, repeated for those still out of range. */
static void walk_short(int64_t bits, int64_t shift, const uint64_t *wide_keys, const uint64_t *wide_multipliers,
                       uint32_t last, int64_t start, int64_t count, int64_t *out) {
    const uint32_t mask = bits == 32 ? ~(uint32_t)0 : ((uint32_t)1 << bits) - 1;
    uint32_t keys[ROUNDS], multipliers[ROUNDS], values[BLOCK];
    uint16_t rows[BLOCK];
    for (int k = 0; k < ROUNDS; k++) {
        keys[k] = (uint32_t)wide_keys[k];
        multipliers[k] = (uint32_t)wide_multipliers[k];
    }
    for (int64_t first = 0; first < count; first += BLOCK) {
        int left = (int)(count - first < BLOCK ? count - first : BLOCK);
        for (int i = 0; i < BLOCK; i++) {
            values[i] = (uint32_t)(start + first + i);
            rows[i] = (uint16_t)i;
        }
        while (left) {
            int walking = left;
            for (int i = 0; i < walking; i += LANES) mix_lanes(values + i, keys, multipliers, mask, (int)shift);
            left = 0;
            for (int i = 0; i < walking; i++) {
                uint32_t x = values[i];
                uint16_t row = rows[i];
                out[first + row] = x;
                values[left] = x;
                rows[left] = row;
                left += x > last;
            }
        }
    }
}

/* Positions of the rows start .. start + count - 1 under the six-round permutation, with cycle walking. */
EXPORT void windrow_walk(int64_t bits, int64_t shift, const uint64_t *keys, const uint64_t *multipliers,
                         uint64_t last, int64_t start, int64_t count, int64_t *out) {
    if (bits <= 32) {
        walk_short(bits, shift, keys, multipliers, (uint32_t)last, start, count, out);
        return;
    }
    const uint64_t mask = ((uint64_t)1 << bits) - 1;
    for (int64_t i = 0; i < count; i++) {
        uint64_t x = (uint64_t)(start + i);
        do {
            for (int k = 0; k < ROUNDS; k++) {
                x = ((x ^ keys[k]) * multipliers[k]) & mask;
                x ^= x >> shift;
            }
        } while (x > last);
        out[i] = (int64_t)x;
    }
}
