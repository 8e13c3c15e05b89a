/* The kernels of pieces, rows that stay together; windrow/shuffle/kernels/pieces.py calls them through native.py. */
#include "_types.h"

/* The places of the rows of pieces, given those of their first rows. */
EXPORT void windrow_number_pieces(int64_t pieces, const uint32_t *places, const int64_t *counts, uint32_t *out) {
    for (int64_t k = 0; k < pieces; k++) {
        for (int64_t i = 0; i < counts[k]; i++) out[i] = places[k] + (uint32_t)i;
        out += counts[k];
    }
}

/* Copy lists of `width` bytes a value, one behind the other, and put `end` behind each that is not empty. */
EXPORT void windrow_end_lists(int64_t width, int64_t lists, const int64_t *counts, const char *values, const char *end,
                              char *out) {
    for (int64_t k = 0; k < lists; k++) {
        const int64_t size = counts[k] * width;
        if (!size) continue;
        memcpy(out, values, size);
        memcpy(out + size, end, width);
        values += size;
        out += size + width;
    }
}

/* Sets of capacities as bits: each level has a bit for each word of the one below that is not 0. */
enum { LEVELS = 4, WORD = 64 };

/* Put documents, longest first, into the sequence with the least room that is enough: best fit. Of several, that which
 * got a document last is taken. `sizes` are from 1 to `capacity`, at most 2^24. `heads` has capacity + 1 elements, -1
 * each, and `bits` is 0 with space for all levels. Returns the number of sequences; `found` has that of each document,
 * and `next` is for as many. */
EXPORT int64_t windrow_best_fit(int64_t count, const int32_t *sizes, int64_t capacity, int32_t *heads, int32_t *next,
                                uint64_t *bits, int32_t *found) {
    uint64_t *levels[LEVELS];
    int64_t words = capacity + 1, sequences = 0;
    for (int level = 0; level < LEVELS; level++) {
        words = (words + WORD - 1) / WORD;
        levels[level] = bits;
        bits += words;
    }
    for (int64_t i = 0; i < count; i++) {
        /* the least room of at least the size: up to the first level that has more, and down again */
        int64_t room = sizes[i];
        int level = 0;
        for (; level < LEVELS; level++, room = room / WORD + 1) {
            /* the last word of a level may be the last one at all */
            if (room / WORD > (capacity >> (6 * level)) / WORD) {
                level = LEVELS;
                break;
            }
            const uint64_t there = levels[level][room / WORD] & (~(uint64_t)0 << room % WORD);
            if (there) {
                room = room / WORD * WORD + count_trailing_zeros(there);
                break;
            }
        }
        int64_t sequence, left;
        if (level >= LEVELS) {
            sequence = sequences++;
            left = capacity - sizes[i];
        } else {
            while (level--) room = room * WORD + count_trailing_zeros(levels[level][room]);
            sequence = heads[room];
            heads[room] = next[sequence];
            if (heads[room] < 0)
                for (int64_t at = room, k = 0; k < LEVELS; k++, at /= WORD)
                    if (levels[k][at / WORD] &= ~((uint64_t)1 << at % WORD)) break;
            left = room - sizes[i];
        }
        found[i] = (int32_t)sequence;
        if (!left) continue;
        next[sequence] = heads[left];
        heads[left] = (int32_t)sequence;
        for (int64_t at = left, k = 0; k < LEVELS; k++, at /= WORD) levels[k][at / WORD] |= (uint64_t)1 << at % WORD;
    }
    return sequences;
}
