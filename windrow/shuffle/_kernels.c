/* The kernels that move rows; windrow/shuffle/kernels.py calls them through ctypes.
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
typedef struct {
    uint64_t low, high;
} LOOSE loose16;
typedef int32_t LOOSE offset4;
typedef int64_t LOOSE offset8;

/* Four columns side by side. */
typedef struct {
    uint32_t a, b, c, d;
} row4;
typedef struct {
    uint64_t a, b, c, d;
} row8;

#define SCATTER(WORD)                                              \
    do {                                                           \
        const WORD *from = (const WORD *)source;                   \
        WORD *to = (WORD *)out;                                    \
        for (int64_t i = 0; i < count; i++) to[targets[i]] = from[i]; \
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

/* Four columns of a width go side by side: a line of the cache then takes two or four of their values at once. */
enum { ABREAST = 4 };

#define SCATTER_ABREAST(WORD, ROW)                                                \
    do {                                                                          \
        const WORD *a = (const WORD *)sources[0], *b = (const WORD *)sources[1];  \
        const WORD *c = (const WORD *)sources[2], *d = (const WORD *)sources[3];  \
        ROW *to = (ROW *)out;                                                     \
        for (int64_t i = 0; i < count; i++) to[targets[i]] = (ROW){a[i], b[i], c[i], d[i]}; \
    } while (0)

static void scatter_abreast(int64_t width, int64_t count, const char *const *sources, const uint32_t *targets, char *out) {
    if (width == 4)
        SCATTER_ABREAST(loose4, row4);
    else
        SCATTER_ABREAST(loose8, row8);
}

#define PART(WORD, ROW)                                                           \
    do {                                                                          \
        WORD *a = (WORD *)outs[0], *b = (WORD *)outs[1], *c = (WORD *)outs[2], *d = (WORD *)outs[3]; \
        const ROW *from = (const ROW *)source;                                    \
        for (int64_t i = 0; i < count; i++) {                                     \
            ROW values = from[i];                                                 \
            a[i] = values.a;                                                      \
            b[i] = values.b;                                                      \
            c[i] = values.c;                                                      \
            d[i] = values.d;                                                      \
        }                                                                         \
    } while (0)

/* Give four columns that lie side by side their values. */
static void part(int64_t width, int64_t count, const char *source, char *const *outs) {
    if (width == 4)
        PART(loose4, row4);
    else
        PART(loose8, row8);
}

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

/* Put row i of each column at row targets[i] of its pieces laid end to end.
 *
 * outs has the pieces' addresses, those of the first column first. Rows go by way of `scratch`,
 * which stays in the cache: each of the pieces' pages is then written once, in order. With
 * `abreast` it has room for four columns, of 4 or 8 bytes.
 */
EXPORT void windrow_group_columns(int64_t columns, int64_t width, int64_t count, const int64_t *sources,
                                  const uint32_t *targets, char *scratch, int64_t abreast, int64_t pieces,
                                  const int64_t *rows, const int64_t *outs) {
    int64_t column = 0;
    for (; abreast && column + ABREAST <= columns; column += ABREAST) {
        const char *from = scratch, *each[ABREAST];
        for (int k = 0; k < ABREAST; k++) each[k] = (const char *)(intptr_t)sources[column + k];
        scatter_abreast(width, count, each, targets, scratch);
        for (int64_t piece = 0; piece < pieces; piece++) {
            char *to[ABREAST];
            for (int k = 0; k < ABREAST; k++) to[k] = (char *)(intptr_t)outs[(column + k) * pieces + piece];
            part(width, rows[piece], from, to);
            from += ABREAST * width * rows[piece];
        }
    }
    for (; column < columns; column++) {
        const char *from = scratch;
        scatter(width, count, (const char *)(intptr_t)sources[column], targets, scratch);
        for (int64_t piece = 0; piece < pieces; piece++) {
            memcpy((char *)(intptr_t)outs[column * pieces + piece], from, width * rows[piece]);
            from += width * rows[piece];
        }
    }
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

/* Put the rows of all parts in their places, column by column.
 *
 * Column c of part p begins at bases[p] + c * strides[p]. Rows are scattered into `scratch`,
 * which stays in the cache, and copied out in order: fresh lines are then written once. With
 * `abreast` it has room for four columns, of 4 or 8 bytes. Without `scratch`, for rows that are
 * whole lines themselves, they go there at once.
 */
EXPORT void windrow_place(int64_t parts, const int64_t *bases, const int64_t *strides, const int64_t *places,
                          const int64_t *counts, int64_t columns, int64_t width, int64_t rows, char *scratch,
                          int64_t abreast, const int64_t *outs) {
    int64_t column = 0;
    for (; abreast && column + ABREAST <= columns; column += ABREAST) {
        const char *each[ABREAST];
        char *to[ABREAST];
        for (int64_t p = 0; p < parts; p++) {
            for (int k = 0; k < ABREAST; k++)
                each[k] = (const char *)(intptr_t)bases[p] + (column + k) * strides[p];
            scatter_abreast(width, counts[p], each, (const uint32_t *)(intptr_t)places[p], scratch);
        }
        for (int k = 0; k < ABREAST; k++) to[k] = (char *)(intptr_t)outs[column + k];
        part(width, rows, scratch, to);
    }
    for (; column < columns; column++) {
        char *out = (char *)(intptr_t)outs[column], *to = scratch ? scratch : out;
        for (int64_t p = 0; p < parts; p++) {
            const char *source = (const char *)(intptr_t)bases[p] + column * strides[p];
            scatter(width, counts[p], source, (const uint32_t *)(intptr_t)places[p], to);
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
        for (int64_t i = 0; i < counts[part]; i++) {                              \
            uint32_t row = to[i] - (uint32_t)first;                               \
            if (row < (uint64_t)rows) ((WORD *)out_offsets)[row + 1] = at[i + 1] - at[i]; \
        }                                                                         \
    }

/* Where text begins whose row i of each part goes to row targets[i] - first; other rows are left out.
 *
 * Writes rows + 1 offsets of `width` bytes; returns the bytes of all, which offsets of 4 bytes
 * may not hold.
 */
EXPORT int64_t windrow_text_offsets(int64_t width, int64_t parts, const int64_t *offsets, const int64_t *targets,
                                    const int64_t *counts, int64_t first, int64_t rows, void *out_offsets) {
    int64_t total = 0;
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

/* Copy the text itself, after windrow_text_offsets. */
EXPORT void windrow_text(int64_t width, int64_t parts, const int64_t *offsets, const int64_t *texts,
                         const int64_t *targets, const int64_t *counts, int64_t first, int64_t rows,
                         const void *out_offsets, char *out) {
    if (width == 4) COPY_TEXT(offset4) else COPY_TEXT(offset8)
}

/* --- positions -------------------------------------------------------------------------- */

enum { ROUNDS = 6, LANES = 64, BLOCK = 8 * LANES };

/* With AVX2, where the machine has it, a value takes a seventh of the time. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define VECTORS __attribute__((target_clones("avx2", "default")))
#endif
#endif
#ifndef VECTORS
#define VECTORS
#endif

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
