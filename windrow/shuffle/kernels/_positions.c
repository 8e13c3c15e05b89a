/* Positions of rows under the keyed permutation; windrow/shuffle/kernels/row_positions.py calls it.
 *
 * Its NumPy twin is `windrow.shuffle.order.permutation`, and tests compare the two bit for bit.
 */
#include "_types.h"

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

/* Four raw outputs of Philox4x64 with ten rounds, the bit generator of NumPy. */
static inline void philox(uint64_t counter, uint64_t low, uint64_t high, uint64_t *out) {
    uint64_t a = counter, b = 0, c = 0, d = 0;
    for (int round = 0; round < 10; round++) {
        const uint64_t of_a = 0xD2E7470EE14C6C93, of_c = 0xCA5A826395121157;
        const uint64_t upper_a = multiply_high(of_a, a), upper_c = multiply_high(of_c, c);
        const uint64_t lower_a = of_a * a, lower_c = of_c * c;
        a = upper_c ^ b ^ low;
        b = lower_c;
        c = upper_a ^ d ^ high;
        d = lower_a;
        low += 0x9E3779B97F4A7C15;
        high += 0xBB67AE8584CAA73B;
    }
    out[0] = a, out[1] = b, out[2] = c, out[3] = d;
}

/* The rank of each of up to 2^16 rows among as many raw outputs of Philox; equal ones keep the order of rows.
 *
 * The outputs are uniform, so their upper `bits` find a bucket of about one row for each. `words` has space for three
 * more than `rows`, `ends` for 2^bits.
 */
EXPORT void windrow_rank(int64_t rows, int64_t bits, const uint64_t *key, uint64_t *restrict words,
                         uint32_t *restrict ends, uint16_t *restrict order, uint16_t *restrict ranks) {
    const int64_t buckets = (int64_t)1 << bits;
    const int shift = (int)(64 - bits);
    for (int64_t b = 0; b < buckets; b++) ends[b] = 0;
    /* NumPy counts before it generates */
    for (int64_t i = 0; i < rows; i += 4) philox((uint64_t)(i / 4 + 1), key[0], key[1], words + i);
    for (int64_t i = 0; i < rows; i++) ends[words[i] >> shift]++;
    uint32_t total = 0;
    for (int64_t b = 0; b < buckets; b++) {
        const uint32_t count = ends[b];
        ends[b] = total;
        total += count;
    }
    for (int64_t i = 0; i < rows; i++) order[ends[words[i] >> shift]++] = (uint16_t)i;
    uint32_t first = 0;
    for (int64_t b = 0; b < buckets; b++) {
        const uint32_t end = ends[b];
        for (uint32_t j = first + 1; j < end; j++) {
            const uint16_t row = order[j];
            const uint64_t word = words[row];
            uint32_t at = j;
            for (; at > first && words[order[at - 1]] > word; at--) order[at] = order[at - 1];
            order[at] = row;
        }
        for (uint32_t j = first; j < end; j++) ranks[order[j]] = (uint16_t)j;
        first = end;
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
