/* The kernels that move rows; windrow/shuffle/kernels/native.py calls them through ctypes.
 *
 * Every function here has a NumPy twin, and tests hold the two equal. None allocates,
 * keeps state, or knows Python, so they run without the interpreter's lock.
 */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* What Arrow hands over may begin at any byte, and be of any type. */
#define LOOSE __attribute__((aligned(1), may_alias))

typedef uint16_t LOOSE loose2;
typedef uint32_t LOOSE loose4;
typedef uint64_t LOOSE loose8;
typedef int16_t LOOSE signed2;
typedef int32_t LOOSE signed4;
typedef int64_t LOOSE signed8;
typedef struct {
    uint64_t low, high;
} LOOSE loose16;
typedef int32_t LOOSE offset4;
typedef int64_t LOOSE offset8;

/* --- packed words ----------------------------------------------------------------------- */

/* With AVX-512 or AVX2, where the machine has it, loops over values take a fraction of the time. */
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

/* Rows that are widened or narrowed at a time: they stay in the nearest cache. */
enum { AT_ONCE = 512 };

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

/* The least and the largest of at least one word, as signed ones of 1, 2, 4 or 8 bytes. */
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

#define SAME(FROM)                                                 \
    do {                                                           \
        const FROM *from = (const FROM *)source, less = (FROM)base; \
        FROM all = 0;                                              \
        for (int64_t i = 0; i < count; i++) all |= (FROM)(from[i] - less); \
        return all != 0;                                           \
    } while (0)

/* Write how much more than `base` each word is, in `bytes` of fewer than its `width`; 1 where one needs more. */
VECTORS static int narrow(int64_t width, int64_t bytes, uint64_t base, int64_t count, const char *source, char *out) {
    switch (width * 8 + bytes) {
    case 8 * 8 + 4: NARROW(loose8, loose4);
    case 8 * 8 + 2: NARROW(loose8, loose2);
    case 8 * 8 + 1: NARROW(loose8, uint8_t);
    case 8 * 8: SAME(loose8);
    case 4 * 8 + 2: NARROW(loose4, loose2);
    case 4 * 8 + 1: NARROW(loose4, uint8_t);
    case 4 * 8: SAME(loose4);
    case 2 * 8 + 1: NARROW(loose2, uint8_t);
    case 2 * 8: SAME(loose2);
    default: SAME(uint8_t);
    }
}

#define EACH(FROM, TO, MAKE)                                       \
    do {                                                           \
        const FROM *from = (const FROM *)source;                   \
        TO *to = (TO *)out;                                        \
        for (int64_t i = 0; i < count; i++) to[i] = (TO)(MAKE);    \
    } while (0)

/* The opposite. */
VECTORS static void widen(int64_t width, int64_t bytes, uint64_t base, int64_t count, const char *source, char *out) {
    switch (width * 8 + bytes) {
    case 8 * 8 + 4: EACH(loose4, loose8, from[i] + base); break;
    case 8 * 8 + 2: EACH(loose2, loose8, from[i] + base); break;
    case 8 * 8 + 1: EACH(uint8_t, loose8, from[i] + base); break;
    case 8 * 8: EACH(char, loose8, ((void)from, base)); break;
    case 4 * 8 + 2: EACH(loose2, loose4, from[i] + base); break;
    case 4 * 8 + 1: EACH(uint8_t, loose4, from[i] + base); break;
    case 4 * 8: EACH(char, loose4, ((void)from, base)); break;
    case 2 * 8 + 1: EACH(uint8_t, loose2, from[i] + base); break;
    case 2 * 8: EACH(char, loose2, ((void)from, base)); break;
    default: EACH(char, uint8_t, ((void)from, base));
    }
}

/* A column of a piece: where its words begin, the bytes that each takes there, and what it is more than. */
typedef struct {
    int64_t address, bytes, base;
} column_of;

/* Some of its words in their own width, in `buffer` where they are packed. */
static const char *words_of(const column_of *column, int64_t width, int64_t first, int64_t count, char *buffer) {
    const char *words = (const char *)(intptr_t)column->address + first * column->bytes;
    if (column->bytes == width) return words;
    widen(width, column->bytes, (uint64_t)column->base, count, words, buffer);
    return buffer;
}

/* --- scattering ------------------------------------------------------------------------- */

/* A row is scattered to a line that the nearest cache does not hold: it is asked for so many rows before. */
enum { AHEAD = 16 };

#define SCATTER(WORD)                                                         \
    do {                                                                      \
        const WORD *from = (const WORD *)source;                              \
        WORD *to = (WORD *)out;                                               \
        for (int64_t i = 0; i < count; i++) {                                 \
            if (i + AHEAD < count) __builtin_prefetch(to + targets[i + AHEAD], 1); \
            to[targets[i]] = from[i];                                         \
        }                                                                     \
    } while (0)

/* Put row i of `source` at row targets[i] of `out`; rows have `width` bytes. */
static void scatter(int64_t width, int64_t count, const char *source, const uint32_t *targets, char *out) {
    switch (width) {
    case 1: SCATTER(uint8_t); break;
    case 2: SCATTER(loose2); break;
    case 4: SCATTER(loose4); break;
    case 8: SCATTER(loose8); break;
    case 16: SCATTER(loose16); break;
    default:
        for (int64_t i = 0; i < count; i++) memcpy(out + targets[i] * width, source + i * width, width);
    }
}

/* --- joint words ------------------------------------------------------------------------ */

/* What a scatter costs is lines of the cache, not bytes. So columns are joined to words of 8 bytes, as many as
 * fit in, and up to four such words go side by side: 8, 16 or 32 bytes for each row. */

/* A column of a joint word: which, how many bits it lies above the lowest, its bytes there, and what it is more than. */
typedef struct {
    int64_t column, shift, bytes, base;
} member;

/* The members of word k are those from starts[k] to starts[k + 1]; so many words go side by side. */
typedef struct {
    int64_t words, abreast;
    const int64_t *starts;
    const member *members;
} layout;

enum { ABREAST = 4, LINE = 64 };

/* The words of some rows, one after the other for each of the words that go side by side. */
typedef uint64_t words_of_rows[ABREAST][AT_ONCE];

#define JOIN(FROM, AS)                                                         \
    do {                                                                       \
        const FROM *from = (const FROM *)source;                               \
        if (first)                                                             \
            for (int64_t i = 0; i < count; i++) to[i] = (uint64_t)(AS) << shift; \
        else                                                                   \
            for (int64_t i = 0; i < count; i++) to[i] |= (uint64_t)(AS) << shift; \
    } while (0)

/* Put a column of fewer than 8 bytes, as it is packed where it comes from, into its words, which are blank where it
 * is the `first`. */
VECTORS static void join(int64_t bytes, const char *source, uint64_t more, uint64_t mask, int64_t shift, int first,
                         int64_t count, uint64_t *restrict to) {
    switch (more ? -bytes : bytes) {
    case 1: JOIN(uint8_t, from[i]); break;
    case 2: JOIN(loose2, from[i]); break;
    case 4: JOIN(loose4, from[i]); break;
    case -1: JOIN(uint8_t, (from[i] + more) & mask); break;
    case -2: JOIN(loose2, (from[i] + more) & mask); break;
    case -4: JOIN(loose4, (from[i] + more) & mask); break;
    default: JOIN(char, ((void)from, more & mask));
    }
}

/* The same of words in their own width, which are to be `less` than they are; 1 where one needs more bytes. */
#define JOIN_LESS(FROM)                                                        \
    do {                                                                       \
        FROM all = 0;                                                          \
        JOIN(FROM, (all |= (FROM)(from[i] - (FROM)less), (FROM)(from[i] - (FROM)less))); \
        return (all & ~mask) != 0;                                             \
    } while (0)

VECTORS static int join_less(int64_t width, const char *source, uint64_t less, uint64_t mask, int64_t shift,
                             int first, int64_t count, uint64_t *restrict to) {
    switch (width) {
    case 1: JOIN_LESS(uint8_t);
    case 2: JOIN_LESS(loose2);
    case 4: JOIN_LESS(loose4);
    default: JOIN_LESS(loose8);
    }
}

#define TAKE(FROM, TO)                                                         \
    do {                                                                       \
        TO *to = (TO *)out;                                                    \
        for (int64_t i = 0; i < count; i++) to[i] = (TO)((FROM)(from[i] >> shift) + base); \
    } while (0)

/* Take a column of so many bytes out of its words again, to `width` bytes each. */
VECTORS static void take(int64_t bytes, int64_t width, uint64_t base, int64_t shift, int64_t count,
                         const uint64_t *restrict from, char *restrict out) {
    switch (width * 8 + bytes) {
    case 8 * 8 + 8: TAKE(uint64_t, loose8); break;
    case 8 * 8 + 4: TAKE(uint32_t, loose8); break;
    case 8 * 8 + 2: TAKE(uint16_t, loose8); break;
    case 8 * 8 + 1: TAKE(uint8_t, loose8); break;
    case 4 * 8 + 4: TAKE(uint32_t, loose4); break;
    case 4 * 8 + 2: TAKE(uint16_t, loose4); break;
    case 4 * 8 + 1: TAKE(uint8_t, loose4); break;
    case 2 * 8 + 2: TAKE(uint16_t, loose2); break;
    case 2 * 8 + 1: TAKE(uint8_t, loose2); break;
    case 1 * 8 + 1: TAKE(uint8_t, uint8_t); break;
    default: widen(width, 0, base, count, NULL, out);
    }
}

/* Ask for memory that is read or written next. Columns are visited in turns of a few pages, which the processor
 * does not foresee. */
static void fetch(const char *at, int64_t bytes) {
    for (int64_t k = 0; k < bytes; k += LINE) __builtin_prefetch(at + k);
}

typedef struct {
    uint64_t a, b;
} row2;
typedef struct {
    uint64_t a, b, c, d;
} row4;

/* How many words a row has that holds so many: 1, 2 or 4, since three move no faster than four. */
static int64_t row_words(int64_t words) { return words == 3 ? ABREAST : words; }

/* Put the words of row i at row targets[i]. */
static void scatter_joint(int64_t words, int64_t count, const char *const *each, const uint32_t *targets, char *out) {
    const loose8 *a = (const loose8 *)each[0], *b = (const loose8 *)each[1];
    const loose8 *c = (const loose8 *)each[2], *d = (const loose8 *)each[3];
    row2 *two = (row2 *)out;
    row4 *four = (row4 *)out;
    switch (words) {
    case 1: scatter(sizeof *a, count, each[0], targets, out); break;
    case 2:
        for (int64_t i = 0; i < count; i++) {
            if (i + AHEAD < count) __builtin_prefetch(two + targets[i + AHEAD], 1);
            two[targets[i]] = (row2){a[i], b[i]};
        }
        break;
    default:
        for (int64_t i = 0; i < count; i++) {
            if (i + AHEAD < count) __builtin_prefetch(four + targets[i + AHEAD], 1);
            four[targets[i]] = (row4){a[i], b[i], c[i], d[i]};
        }
    }
}

/* Lay the words of rows one after the other again. */
static void part(int64_t words, int64_t count, const char *rows, uint64_t *const *to) {
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

/* How many words go side by side from `word` on. */
static int64_t words_there(const layout *how, int64_t word) {
    return how->words - word < how->abreast ? how->words - word : how->abreast;
}

/* Take so many rows apart: column k of them goes to outs[k * stride] + done rows, in words of `width` bytes, or,
 * where that is 0, as they are packed, without what they are more than. */
static void take_rows(const layout *how, int64_t word, int64_t count, const char *rows, int64_t width, int64_t done,
                      const int64_t *outs, int64_t stride) {
    words_of_rows buffers;
    uint64_t *to[ABREAST];
    const int64_t there = words_there(how, word), stop = how->starts[word + there];
    for (int k = 0; k < ABREAST; k++) to[k] = buffers[k];
    part(row_words(there), count, rows, to);
    for (int64_t k = 0; k < there; k++)
        for (int64_t m = how->starts[word + k]; m < how->starts[word + k + 1]; m++) {
            const member *own = how->members + m;
            const int64_t bytes = width ? width : own->bytes;
            if (m + 1 < stop) {
                const int64_t next = width ? width : own[1].bytes;
                fetch((const char *)(intptr_t)outs[own[1].column * stride] + done * next, count * next);
            }
            if (bytes)
                take(own->bytes, bytes, width ? (uint64_t)own->base : 0, own->shift, count, buffers[k],
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

/* Sort entries by run, stably: targets[i] is the rank of entry i, those of other runs last.
 *
 * starts has run_count + 1 places, next as many; starts[k] is where run k begins.
 */
EXPORT void windrow_group(int64_t width, int64_t count, const void *runs, int64_t first, int64_t run_count,
                          uint32_t *targets, int64_t *starts, int64_t *next) {
    memset(next, 0, (run_count + 1) * sizeof *next);
    if (width == 2) COUNT(uint16_t) else COUNT(uint32_t)
    for (int64_t k = 0; k < run_count; k++) next[k + 1] += next[k];
    memcpy(starts, next, (run_count + 1) * sizeof *next);
    int64_t left_out = starts[run_count];
    if (width == 2) PLACE(uint16_t) else PLACE(uint32_t)
}

/* Give each piece its words, which lie end to end; returns 1 where one needs more bytes. */
static int copy_out(int64_t width, int64_t bytes, int64_t base, const char *words, int64_t pieces, const int64_t *rows,
                    const int64_t *outs) {
    for (int64_t piece = 0; piece < pieces; piece++) {
        char *out = (char *)(intptr_t)outs[piece];
        if (bytes == width)
            memcpy(out, words, width * rows[piece]);
        else if (narrow(width, bytes, (uint64_t)base, rows[piece], words, out))
            return 1;
        words += width * rows[piece];
    }
    return 0;
}

/* A column whose rows are in order: its words, the bytes of each, and the addresses of its pieces. */
typedef struct {
    int64_t words, bytes, outs;
} ordered;

/* Give each piece its words of some columns. */
EXPORT void windrow_copy_packed(int64_t columns, const ordered *each, int64_t pieces, const int64_t *rows) {
    for (int64_t k = 0; k < columns; k++) {
        const char *words = (const char *)(intptr_t)each[k].words;
        const int64_t *outs = (const int64_t *)(intptr_t)each[k].outs;
        for (int64_t piece = 0; piece < pieces; piece++) {
            const int64_t size = each[k].bytes * rows[piece];
            memcpy((char *)(intptr_t)outs[piece], words, size);
            words += size;
        }
    }
}

/* Join some rows of the words from `word` on, and say where each word's lie; returns a column that does not fit, or -1. */
static int64_t join_own(const layout *how, int64_t word, int64_t width, int64_t done, int64_t count,
                        const int64_t *sources, words_of_rows buffers, const char **each) {
    const int64_t there = words_there(how, word), stop = how->starts[word + there];
    for (int64_t k = 0; k < there; k++) {
        const int64_t begin = how->starts[word + k];
        each[k] = (const char *)buffers[k];
        for (int64_t m = begin; m < how->starts[word + k + 1]; m++) {
            const member *own = how->members + m;
            const char *from = (const char *)(intptr_t)sources[own->column] + done * width;
            if (m + 1 < stop)
                fetch((const char *)(intptr_t)sources[own[1].column] + done * width, count * width);
            if (own->bytes == 8)
                each[k] = from;
            else if (own->bytes == width)
                join(width, from, 0, 0, own->shift, m == begin, count, buffers[k]);
            /* behind a whole word, one without bytes is only looked at */
            else if (join_less(width, from, (uint64_t)own->base, mask_of(own), own->shift,
                               m == begin || each[k] != (const char *)buffers[k], count, buffers[k]))
                return own->column;
        }
    }
    for (int64_t k = there; k < ABREAST; k++) each[k] = each[0];
    return -1;
}

/* Put row i of each column at row targets[i] of its pieces laid end to end.
 *
 * `packing` has the bytes that each column's words travel in, and what they are more than; outs has
 * the pieces' addresses, those of the first column first. Rows go by way of `scratch`, which stays in
 * the cache: each of the pieces' pages is then written once, in order. Columns go in so many joint
 * `words`, or, where there are none, by themselves. Returns a column whose words need more bytes, or -1.
 */
EXPORT int64_t windrow_group_joined(int64_t columns, int64_t width, int64_t count, const int64_t *sources,
                                    const int64_t *packing, const uint32_t *targets, char *scratch, int64_t words,
                                    int64_t abreast, const int64_t *starts, const member *members, int64_t pieces,
                                    const int64_t *rows, const int64_t *outs) {
    const layout how = {words, abreast, starts, members};
    words_of_rows buffers;
    const char *each[ABREAST];
    for (int64_t word = 0; word < words; word += abreast) {
        const int64_t row = row_words(words_there(&how, word));
        for (int64_t first = 0; first < count; first += AT_ONCE) {
            const int64_t some = count - first < AT_ONCE ? count - first : AT_ONCE;
            const int64_t misfit = join_own(&how, word, width, first, some, sources, buffers, each);
            if (misfit >= 0) return misfit;
            scatter_joint(row, some, each, targets + first, scratch);
        }
        const char *from = scratch;
        for (int64_t piece = 0; piece < pieces; piece++)
            for (int64_t first = 0; first < rows[piece]; first += AT_ONCE) {
                const int64_t some = rows[piece] - first < AT_ONCE ? rows[piece] - first : AT_ONCE;
                take_rows(&how, word, some, from, 0, first, outs + piece, pieces);
                from += some * row * sizeof(uint64_t);
            }
    }
    for (int64_t column = 0; column < columns && !words; column++) {
        scatter(width, count, (const char *)(intptr_t)sources[column], targets, scratch);
        if (copy_out(width, packing[2 * column], packing[2 * column + 1], scratch, pieces, rows,
                     outs + column * pieces))
            return column;
    }
    return -1;
}

/* Division by a number that is the same for many: exact for all words of 32 bits. */
static inline uint64_t inverse(uint32_t divisor) { return divisor > 1 ? UINT64_MAX / divisor + 1 : 0; }

static inline uint32_t divide(uint32_t number, uint64_t inverted) {
    return inverted ? (uint32_t)(((unsigned __int128)inverted * number) >> 64) : number;
}

/* Find the run of rows of the epoch's order, and the place within it.
 *
 * Rows in [first_row, stop_row) are dealt in steps of batches, one for each shard; the numbers of
 * all others are put into `rest`, and how many they are is returned. Run r of shard s has the id
 * ids[r + base of s]; where there is none the row is left out, and has the id `none`. Of a shard's
 * first run here, some rows came before. `shards` has (base, first run, rows of it before) of each.
 */
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

/* How many places of [0, rows) are named exactly once; `seen` has a byte for each row.
 *
 * Returns -1 when a place is named twice or lies outside.
 */
EXPORT int64_t windrow_check_places(int64_t parts, const int64_t *places, const int64_t *counts, int64_t rows,
                                    uint8_t *seen) {
    int64_t named = 0;
    memset(seen, 0, rows);
    for (int64_t part = 0; part < parts; part++) {
        const uint32_t *at = (const uint32_t *)(intptr_t)places[part];
        for (int64_t i = 0; i < counts[part]; i++) {
            if (at[i] >= (uint64_t)rows || seen[at[i]]) return -1;
            seen[at[i]] = 1;
        }
        named += counts[part];
    }
    return named;
}

/* Join some rows of a part's words from `word` on, and say where each word's lie. */
static void join_packed(const layout *how, int64_t word, int64_t done, int64_t count, const column_of *sources,
                        int64_t parts, words_of_rows buffers, const char **each) {
    enum { BEFORE = 2 }; /* columns that are asked for before they are read */
    const int64_t there = words_there(how, word), stop = how->starts[word + there];
    for (int64_t k = 0; k < there; k++) {
        const int64_t begin = how->starts[word + k];
        each[k] = (const char *)buffers[k];
        for (int64_t m = begin; m < how->starts[word + k + 1]; m++) {
            const member *own = how->members + m;
            const column_of *source = sources + own->column * parts;
            const char *from = (const char *)(intptr_t)source->address + done * source->bytes;
            if (m + BEFORE < stop) {
                const column_of *next = sources + own[BEFORE].column * parts;
                fetch((const char *)(intptr_t)next->address + done * next->bytes, count * next->bytes);
            }
            if (source->bytes == 8)
                each[k] = from;
            else if (own->bytes || m == begin)
                join(source->bytes, from, (uint64_t)(source->base - own->base), mask_of(own), own->shift, m == begin,
                     count, buffers[k]);
        }
    }
    for (int64_t k = there; k < ABREAST; k++) each[k] = each[0];
}

/* Put the rows of all parts in their places.
 *
 * `sources` has each column of each part, those of the first column first; the rows begin at
 * firsts[p] of part p. Rows are scattered into `scratch`, which stays in the cache, and copied out
 * in order: fresh lines are then written once. Columns go in so many joint `words`, or, where there are
 * none, by themselves. Without `scratch`, for rows that are whole lines themselves, they go there at once.
 */
EXPORT void windrow_place_joined(int64_t parts, const column_of *sources, const int64_t *firsts,
                                 const int64_t *places, const int64_t *counts, int64_t columns, int64_t width,
                                 int64_t rows, char *scratch, int64_t words, int64_t abreast, const int64_t *starts,
                                 const member *members, const int64_t *outs) {
    const layout how = {words, abreast, starts, members};
    words_of_rows buffers;
    const char *each[ABREAST];
    for (int64_t word = 0; word < words; word += abreast) {
        const int64_t row = row_words(words_there(&how, word));
        for (int64_t p = 0; p < parts; p++) {
            const uint32_t *at = (const uint32_t *)(intptr_t)places[p];
            for (int64_t first = 0; first < counts[p]; first += AT_ONCE) {
                const int64_t some = counts[p] - first < AT_ONCE ? counts[p] - first : AT_ONCE;
                join_packed(&how, word, firsts[p] + first, some, sources + p, parts, buffers, each);
                scatter_joint(row, some, each, at + first, scratch);
            }
        }
        for (int64_t first = 0; first < rows; first += AT_ONCE)
            take_rows(&how, word, rows - first < AT_ONCE ? rows - first : AT_ONCE,
                      scratch + first * row * sizeof(uint64_t), width, first, outs, 1);
    }
    for (int64_t column = 0; column < columns && !words; column++) {
        char *out = (char *)(intptr_t)outs[column], *to = scratch ? scratch : out;
        for (int64_t p = 0; p < parts; p++) {
            const column_of *source = sources + column * parts + p;
            const uint32_t *at = (const uint32_t *)(intptr_t)places[p];
            const int64_t most = source->bytes == width ? counts[p] : AT_ONCE;
            for (int64_t first = 0; first < counts[p]; first += most) {
                const int64_t some = counts[p] - first < most ? counts[p] - first : most;
                scatter(width, some, words_of(source, width, firsts[p] + first, some, (char *)buffers[0]), at + first, to);
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

#define LENGTHS(WORD)                                                             \
    for (int64_t part = 0; part < parts; part++) {                                \
        const WORD *at = (const WORD *)(intptr_t)offsets[part];                   \
        const uint32_t *to = (const uint32_t *)(intptr_t)targets[part];           \
        if (counts[part]) wrong |= at[0] < 0 || at[counts[part]] > sizes[part] ? -1 : 0; \
        for (int64_t i = 0; i < counts[part]; i++) {                              \
            uint32_t row = to[i] - (uint32_t)first;                               \
            int64_t bytes = (int64_t)((uint64_t)at[i + 1] - (uint64_t)at[i]);     \
            wrong |= bytes;                                                       \
            if (row < (uint64_t)rows) ((WORD *)out_offsets)[row + 1] = (WORD)bytes; \
        }                                                                         \
    }                                                                             \
    if (wrong < 0) return -1;

/* Where text begins whose row i of each part goes to row targets[i] - first; other rows are left out. The text of
 * each part has so many bytes.
 *
 * Writes rows + 1 offsets of `width` bytes; returns the bytes of all, which offsets of 4 bytes
 * may not hold, or -1 where offsets decrease or lie outside of the text.
 */
EXPORT int64_t windrow_checked_offsets(int64_t width, int64_t parts, const int64_t *offsets, const int64_t *sizes,
                                       const int64_t *targets, const int64_t *counts, int64_t first, int64_t rows,
                                       void *out_offsets) {
    int64_t total = 0, wrong = 0;
    memset(out_offsets, 0, (rows + 1) * width);
    if (width == 4) {
        LENGTHS(offset4)
        for (int64_t k = 1; k <= rows; k++) {
            total += ((int32_t *)out_offsets)[k];
            ((int32_t *)out_offsets)[k] = (int32_t)total;
        }
    } else {
        LENGTHS(offset8)
        for (int64_t k = 1; k <= rows; k++) {
            total += ((int64_t *)out_offsets)[k];
            ((int64_t *)out_offsets)[k] = total;
        }
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

/* Copy the text itself, after windrow_checked_offsets. */
EXPORT void windrow_text(int64_t width, int64_t parts, const int64_t *offsets, const int64_t *texts,
                         const int64_t *targets, const int64_t *counts, int64_t first, int64_t rows,
                         const void *out_offsets, char *out) {
    if (width == 4) COPY_TEXT(offset4) else COPY_TEXT(offset8)
}

/* --- positions -------------------------------------------------------------------------- */

enum { ROUNDS = 6, LANES = 64, BLOCK = 8 * LANES };

/* The rounds for so many values, a number that a compiler can cut into vectors. */
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

/* Walks of at most 32 bits: a block of rows at once, those that are not in range yet again and again. */
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

/* Positions of the rows start .. start + count - 1 under six rounds with cycle walking. */
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
