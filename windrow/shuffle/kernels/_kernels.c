/* The kernels that group and place rows; windrow/shuffle/kernels/native.py calls them through ctypes.
 *
 * Every exported function has a NumPy twin, and tests compare the two bit for bit. No function allocates,
 * keeps state, or uses the Python API, so all of them run without the GIL.
 */
#include "_packed_rows.h"
#include "_types.h"

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

/* Encode pieces, ranges of rows, one behind the other; returns 1 if a value does not fit. */
EXPORT int64_t windrow_copy_pieces(int64_t width, int64_t bytes, int64_t base, int64_t pieces, const int64_t *firsts,
                                   const int64_t *counts, const char *values, char *out) {
    for (int64_t k = 0; k < pieces; k++) {
        const char *from = values + firsts[k] * width;
        if (bytes == width)
            memcpy(out, from, counts[k] * width);
        else if (narrow(width, bytes, (uint64_t)base, counts[k], from, out))
            return 1;
        out += counts[k] * bytes;
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
    return inverted ? (uint32_t)multiply_high(inverted, number) : number;
}

/* Steps of some rows, each of which has a batch of every shard, in runs of whole batches. */
typedef struct {
    int64_t base_row; /* at which the first step begins */
    uint32_t step_rows, batch_rows, run_rows;
    uint64_t step, batch, run; /* their inverses */
    int is_one;                /* whether there is one shard, whose rows all are */
} steps;

static inline steps steps_of(int64_t base_row, int64_t step_rows, int64_t batch_rows, int64_t run_rows) {
    const uint32_t step = (uint32_t)step_rows, batch = (uint32_t)batch_rows, run = (uint32_t)run_rows;
    return (steps){base_row, step, batch, run, inverse(step), inverse(batch), inverse(run), step == batch};
}

typedef struct {
    uint32_t shard, run, place; /* the run's number in the shard's stream, and the place within it */
} run_place;

static inline run_place find_run(const steps *how, int is_one, int64_t row) {
    const uint32_t ahead = (uint32_t)(row - how->base_row);
    run_place found = {0, 0, ahead};
    if (!is_one) {
        const uint32_t before = divide(ahead, how->step), within = ahead - before * how->step_rows;
        found.shard = divide(within, how->batch);
        found.place = within - found.shard * how->batch_rows + before * how->batch_rows;
    }
    found.run = divide(found.place, how->run);
    found.place -= found.run * how->run_rows;
    return found;
}

/* Rows of a run that come before this window or round, if it is the first one; own[1] is its number, own[2] the rows.
 * Without a branch, since rows come in random order. */
static inline uint32_t rows_before(uint32_t run, const int64_t *own) {
    return (uint32_t)own[2] & -(uint32_t)(run == own[1]);
}

static inline void set_run(int64_t id_bytes, void *runs, int64_t i, int64_t id) {
    if (id_bytes == 2) ((uint16_t *)runs)[i] = (uint16_t)id;
    else ((uint32_t *)runs)[i] = (uint32_t)id;
}

/* Compile a loop for one shard and for many, and for each width of an id. */
#define FOR_SHARDS_AND_IDS(loop, is_one, id_bytes, ...)                  \
    ((is_one) ? (id_bytes) == 2 ? loop(1, 2, __VA_ARGS__) : loop(1, 4, __VA_ARGS__) \
              : (id_bytes) == 2 ? loop(0, 2, __VA_ARGS__) : loop(0, 4, __VA_ARGS__))

ALWAYS_INLINE int64_t
assign_each(int is_one, int64_t id_bytes, int64_t count, const int64_t *rows, int64_t stop_row, const steps *how,
            const int64_t *shards, int64_t id_count, const void *ids, int64_t none, void *runs, uint32_t *places,
            uint32_t *rest) {
    int64_t others = 0;
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] < how->base_row || rows[i] >= stop_row) {
            rest[others++] = (uint32_t)i;
            continue;
        }
        const run_place found = find_run(how, is_one, rows[i]);
        const int64_t *own = shards + 3 * found.shard;
        const uint64_t at = (uint64_t)(found.run + own[0]);
        int64_t id = none;
        if (at < (uint64_t)id_count) id = id_bytes == 2 ? ((const uint16_t *)ids)[at] : ((const uint32_t *)ids)[at];
        set_run(id_bytes, runs, i, id);
        places[i] = found.place - rows_before(found.run, own);
    }
    return others;
}

/* Find the run, and the place within it, of rows given by their position in the epoch; the arguments are those of
 * row_positions.assign. Run r of shard s has the id ids[r + base of s]. Returns the number of rows in `rest`. */
EXPORT int64_t windrow_assign(int64_t count, const int64_t *rows, int64_t first_row, int64_t stop_row,
                              int64_t step_rows, int64_t batch_rows, int64_t run_rows, const int64_t *shards,
                              int64_t id_bytes, int64_t id_count, const void *ids, int64_t none, void *runs,
                              uint32_t *places, uint32_t *rest) {
    const steps how = steps_of(first_row, step_rows, batch_rows, run_rows);
    return FOR_SHARDS_AND_IDS(assign_each, how.is_one, id_bytes, count, rows, stop_row, &how, shards, id_count, ids,
                              none, runs, places, rest);
}

ALWAYS_INLINE int64_t
assign_rounds_each(int is_one, int64_t id_bytes, int64_t count, const int64_t *rows, int64_t first_row,
                   int64_t stop_row, int64_t rest_row, const steps *how, int64_t round_row, int64_t round_rows,
                   int64_t shards, const int64_t *tables, int64_t none, void *runs, uint32_t *places, uint32_t *rest) {
    const uint64_t round = inverse((uint32_t)round_rows);
    int64_t others = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t id = -1;
        uint32_t place = 0;
        if (rows[i] >= rest_row && rows[i] < stop_row) {
            rest[others++] = (uint32_t)i;
        } else if (rows[i] >= first_row && rows[i] < stop_row) {
            const run_place found = find_run(how, is_one, rows[i]);
            const uint32_t number = divide((uint32_t)(rows[i] - round_row), round);
            const int64_t *own = tables + 3 * ((int64_t)number * shards + found.shard);
            id = found.run + own[0];
            place = found.place - rows_before(found.run, own);
        }
        set_run(id_bytes, runs, i, id < 0 ? none : id);
        places[i] = place;
    }
    return others;
}

/* The same for the rows of a source's window in a mixture; the arguments are those of row_positions.assign_rounds. */
EXPORT int64_t windrow_assign_rounds(int64_t count, const int64_t *rows, int64_t first_row, int64_t stop_row,
                                     int64_t base_row, int64_t rest_row, int64_t step_rows, int64_t batch_rows,
                                     int64_t run_rows, int64_t round_row, int64_t round_rows, int64_t shards,
                                     const int64_t *tables, int64_t id_bytes, int64_t none, void *runs,
                                     uint32_t *places, uint32_t *rest) {
    const steps how = steps_of(base_row, step_rows, batch_rows, run_rows);
    return FOR_SHARDS_AND_IDS(assign_rounds_each, how.is_one, id_bytes, count, rows, first_row, stop_row, rest_row,
                              &how, round_row, round_rows, shards, tables, none, runs, places, rest);
}

/* Row numbers of a source, in place, become rows of a mixture; the arguments are those of row_positions.scatter. */
EXPORT void windrow_scatter(int64_t count, int64_t *rows, int64_t first, int64_t weight, int64_t period,
                            const int32_t *places, int64_t start) {
    const uint64_t inverted = inverse((uint32_t)weight);
    for (int64_t i = 0; i < count; i++) {
        const uint32_t number = (uint32_t)(rows[i] - first), periods = divide(number, inverted);
        rows[i] = start + periods * period + places[number - periods * (uint32_t)weight];
    }
}

/* The number of places, all in [0, rows) and distinct, else -1; `seen` has a byte per row. */
EXPORT int64_t windrow_check_places(int64_t parts, const int64_t *places, const int64_t *counts, int64_t rows,
                                    uint8_t *seen) {
    int64_t distinct = 0;
    memset(seen, 0, rows);
    for (int64_t part = 0; part < parts; part++) {
        const uint32_t *at = (const uint32_t *)(intptr_t)places[part];
        for (int64_t i = 0; i < counts[part]; i++) {
            for (; i + TOGETHER <= counts[part] && are_together(at + i); i += TOGETHER) {
                uint8_t twice = 0;
                if (at[i] + (uint64_t)TOGETHER > (uint64_t)rows) return -1;
                for (int64_t k = 0; k < TOGETHER; k++) twice |= seen[at[i] + k];
                if (twice) return -1;
                memset(seen + at[i], 1, TOGETHER);
            }
            if (i == counts[part]) break;
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

/* Columns of one width and their layout, as native.place lays it out: the addresses of their sources, of scratch memory
 * or 0, of the layout and of the addresses of their outputs. */
typedef struct {
    int64_t columns, width, sources, scratch, words, lanes, starts, members, outs;
} joined_columns;

/* Scatter and unpack: put the rows of columns of one width, of all parts, at their places.
 *
 * Rows are scattered into `scratch`, which stays in the cache, then copied out in order, so each fresh cache line is
 * written once. Columns are moved in `words` packed words, or one by one if that is 0. Rows of a cache line or more
 * need no `scratch`. */
static void place_joined(int64_t parts, const int64_t *firsts, const int64_t *places, const int64_t *counts,
                         int64_t rows, const joined_columns *joined) {
    const packed_column *sources = (const packed_column *)(intptr_t)joined->sources;
    const int64_t *outs = (const int64_t *)(intptr_t)joined->outs;
    const int64_t columns = joined->columns, width = joined->width, words = joined->words, lanes = joined->lanes;
    char *scratch = (char *)(intptr_t)joined->scratch;
    const layout how = {words, lanes, (const int64_t *)(intptr_t)joined->starts,
                        (const member *)(intptr_t)joined->members};
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

/* Put validity bits of all parts at their places; the arguments are those of native.move_validity. Most bytes of bits
 * hold no null, so the cost is that of the nulls. Returns the number of nulls. */
EXPORT int64_t windrow_move_validity(int64_t parts, const int64_t *bits, const int64_t *firsts, const int64_t *places,
                                     const int64_t *counts, int64_t first, int64_t rows, uint8_t *out) {
    int64_t nulls = 0;
    memset(out, 0xFF, (rows + 7) / 8);
    for (int64_t p = 0; p < parts; p++) {
        const uint8_t *from = (const uint8_t *)(intptr_t)bits[p];
        const uint32_t *at = (const uint32_t *)(intptr_t)places[p];
        for (int64_t i = 0; from != NULL && i < counts[p];) {
            const int64_t bit = firsts[p] + i, shift = bit & 7;
            const int64_t some = 8 - shift < counts[p] - i ? 8 - shift : counts[p] - i;
            uint32_t null = ~((uint32_t)from[bit >> 3] >> shift) & ((1u << some) - 1);
            for (; null; null &= null - 1) {
                const uint32_t place = at[i + count_trailing_zeros4(null)] - (uint32_t)first;
                if (place >= (uint64_t)rows) continue;
                out[place >> 3] &= (uint8_t)~(1u << (place & 7));
                nulls++;
            }
            i += some;
        }
    }
    return nulls;
}

/* Put the rows of all columns of a run at their places, and their validity bits; the arguments are those of
 * native.place. With `seen`, of a byte a row, places are checked before. Returns whether they are right. */
EXPORT int64_t windrow_place_run(int64_t parts, const int64_t *firsts, const int64_t *places, const int64_t *counts,
                                 int64_t rows, uint8_t *seen, int64_t groups, const joined_columns *joined,
                                 int64_t nullable, const int64_t *bits, const int64_t *masks, int64_t *nulls) {
    if (seen && windrow_check_places(parts, places, counts, rows, seen) != rows) return 0;
    for (int64_t k = 0; k < groups; k++) place_joined(parts, firsts, places, counts, rows, joined + k);
    for (int64_t k = 0; k < nullable; k++)
        nulls[k] = windrow_move_validity(parts, bits + k * parts, firsts, places, counts, 0, rows,
                                         (uint8_t *)(intptr_t)masks[k]);
    return 1;
}

static inline void copy_bytes(char *to, const char *from, int64_t count) {
    /* a call of memcpy costs more than a few of these copies, of which the last two overlap */
    if (count > 128) {
        memcpy(to, from, count);
    } else if (count >= 16) {
        for (int64_t i = 0; i + 16 < count; i += 16) memcpy(to + i, from + i, 16);
        memcpy(to + count - 16, from + count - 16, 16);
    } else if (count >= 8) {
        uint64_t head, tail;
        memcpy(&head, from, 8);
        memcpy(&tail, from + count - 8, 8);
        memcpy(to, &head, 8);
        memcpy(to + count - 8, &tail, 8);
    } else if (count >= 4) {
        uint32_t head, tail;
        memcpy(&head, from, 4);
        memcpy(&tail, from + count - 4, 4);
        memcpy(to, &head, 4);
        memcpy(to + count - 4, &tail, 4);
    } else if (count > 0) {
        const char first = from[0], middle = from[count >> 1], last = from[count - 1];
        to[0] = first;
        to[count >> 1] = middle;
        to[count - 1] = last;
    }
}

#define OFFSETS(WORD)                                                             \
    WORD *ends = (WORD *)out_offsets + 1;                                         \
    for (int64_t part = 0; part < parts; part++) {                                \
        const WORD *at = (const WORD *)(intptr_t)offsets[part];                   \
        const uint32_t *to = (const uint32_t *)(intptr_t)targets[part];           \
        if (counts[part]) wrong |= at[0] < 0 || at[counts[part]] > sizes[part] ? -1 : 0; \
        for (int64_t i = 0; i < counts[part]; i++) {                              \
            if (i + PREFETCH_ROWS < counts[part])                                 \
                PREFETCH_TO_WRITE(ends + (uint32_t)(to[i + PREFETCH_ROWS] - (uint32_t)first)); \
            uint32_t row = to[i] - (uint32_t)first;                               \
            int64_t bytes = (int64_t)((uint64_t)at[i + 1] - (uint64_t)at[i]);     \
            wrong |= bytes;                                                       \
            if (row < (uint64_t)rows) ends[row] = (WORD)bytes;                    \
        }                                                                         \
    }                                                                             \
    if (wrong < 0) return -1;                                                     \
    for (int64_t k = 0; k < rows; k++) ends[k] = (WORD)(total += ends[k]);

#define COMMON_LENGTH(WORD)                                                       \
    for (int64_t part = 0; part < parts; part++) {                                \
        const WORD *at = (const WORD *)(intptr_t)offsets[part];                   \
        const int64_t count = counts[part];                                       \
        if (count == 0) continue;                                                 \
        if (common < 0) common = (int64_t)((uint64_t)at[1] - (uint64_t)at[0]);    \
        if (common < 0 || at[0] < 0 || at[count] > sizes[part]) return -1;        \
        for (int64_t i = 0; i < count;) {                                         \
            /* lengths that differ mostly do so at once */                        \
            const int64_t stop = count - i < 512 ? count : i + 512;               \
            uint64_t differs = 0;                                                 \
            for (; i < stop; i++)                                                 \
                differs |= ((uint64_t)at[i + 1] - (uint64_t)at[i]) ^ (uint64_t)common; \
            if (differs) return -1;                                               \
        }                                                                         \
    }

/* The length that the ranges of all rows have, if they are inside the values; else -1. */
EXPORT int64_t windrow_common_length(int64_t width, int64_t parts, const int64_t *offsets, const int64_t *sizes,
                                     const int64_t *counts) {
    int64_t common = -1;
    if (width == 4) { COMMON_LENGTH(offset4) } else { COMMON_LENGTH(offset8) }
    return common;
}

/* Compute the offsets of ranges of values, such as text, whose row i of each part goes to row targets[i] - first; rows outside [0, rows) are
 * dropped. `sizes` has the number of values of each part. Writes rows + 1 offsets of `width` bytes. Returns their
 * total, which can exceed what 4-byte offsets can represent, or -1 if offsets decrease or are outside the values. */
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

#define COPY_RANGES(WORD)                                                         \
    for (int64_t part = 0; part < parts; part++) {                                \
        const WORD *at = (const WORD *)(intptr_t)offsets[part];                   \
        const char *from = (const char *)(intptr_t)values[part];                  \
        const uint32_t *to = (const uint32_t *)(intptr_t)targets[part];           \
        for (int64_t i = 0; i < counts[part]; i++) {                              \
            if (i + PREFETCH_ROWS < counts[part])                                 \
                PREFETCH((const WORD *)out_offsets + (uint32_t)(to[i + PREFETCH_ROWS] - (uint32_t)first)); \
            uint32_t row = to[i] - (uint32_t)first;                               \
            if (row < (uint64_t)rows)                                             \
                copy_bytes(out + ((const WORD *)out_offsets)[row] * bytes, from + at[i] * bytes, \
                           (at[i + 1] - at[i]) * bytes);                           \
        }                                                                         \
    }

#define SCATTER_ROWS(WORD)                                                        \
    for (int64_t i = 0; i < counts[part]; i++) {                                  \
        const uint32_t row = to[i] - (uint32_t)first;                             \
        if (row < (uint64_t)rows) ((WORD *)out)[row] = ((const WORD *)from)[i];   \
    }

/* Scatter one value of `width` bytes a row: row i of each part goes to row targets[i] - first; rows outside [0, rows)
 * are dropped. */
EXPORT void windrow_scatter_rows(int64_t width, int64_t parts, const int64_t *values, const int64_t *targets,
                                 const int64_t *counts, int64_t first, int64_t rows, char *out) {
    for (int64_t part = 0; part < parts; part++) {
        const char *from = (const char *)(intptr_t)values[part];
        const uint32_t *to = (const uint32_t *)(intptr_t)targets[part];
        switch (width) {
        case 1: SCATTER_ROWS(uint8_t) break;
        case 2: SCATTER_ROWS(unaligned2) break;
        case 4: SCATTER_ROWS(unaligned4) break;
        case 8: SCATTER_ROWS(unaligned8) break;
        case 16: SCATTER_ROWS(unaligned16) break;
        default:
            for (int64_t i = 0; i < counts[part]; i++) {
                const uint32_t row = to[i] - (uint32_t)first;
                if (row < (uint64_t)rows) copy_bytes(out + row * width, from + i * width, width);
            }
        }
    }
}

/* Copy the values of all rows, of `bytes` bytes each, after windrow_checked_offsets. */
EXPORT void windrow_move_ranges(int64_t width, int64_t parts, const int64_t *offsets, const int64_t *values,
                                int64_t bytes, const int64_t *targets, const int64_t *counts, int64_t first,
                                int64_t rows, const void *out_offsets, char *out) {
    if (width == 4) COPY_RANGES(offset4) else COPY_RANGES(offset8)
}
