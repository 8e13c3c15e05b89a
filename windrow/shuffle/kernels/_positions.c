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
 * Rows are sorted by the upper 2 * `bits` of their outputs, half of them at a time. These are so many that nearly all rows
 * are in order then, and what is left is found without a branch that cannot be predicted. `words` has space for three more
 * than `rows`, `ends` for 2 * 2^bits.
 */
EXPORT void windrow_rank(int64_t rows, int64_t bits, const uint64_t *key, uint64_t *restrict words,
                         uint32_t *restrict ends, uint16_t *restrict half, uint16_t *restrict order,
                         uint16_t *restrict ranks) {
    const int64_t buckets = (int64_t)1 << bits;
    const int upper = (int)(64 - bits), lower = (int)(64 - 2 * bits);
    const uint64_t mask = (uint64_t)buckets - 1;
    uint32_t *of_lower = ends, *of_upper = ends + buckets, total[2] = {0, 0};
    memset(ends, 0, 2 * (size_t)buckets * sizeof *ends);
    /* NumPy counts before it generates */
    for (int64_t i = 0; i < rows; i += 4) philox((uint64_t)(i / 4 + 1), key[0], key[1], words + i);
    for (int64_t i = 0; i < rows; i++) {
        of_lower[(words[i] >> lower) & mask]++;
        of_upper[words[i] >> upper]++;
    }
    for (int64_t b = 0; b < buckets; b++) {
        const uint32_t low = of_lower[b], high = of_upper[b];
        of_lower[b] = total[0], of_upper[b] = total[1];
        total[0] += low, total[1] += high;
    }
    for (int64_t i = 0; i < rows; i++) half[of_lower[(words[i] >> lower) & mask]++] = (uint16_t)i;
    for (int64_t i = 0; i < rows; i++) order[of_upper[words[half[i]] >> upper]++] = half[i];
    for (int64_t i = 1; i < rows; i++) {
        const uint16_t row = order[i];
        int64_t at = i;
        for (; at > 0 && words[order[at - 1]] > words[row]; at--) order[at] = order[at - 1];
        order[at] = row;
    }
    for (int64_t i = 0; i < rows; i++) ranks[order[i]] = (uint16_t)i;
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
