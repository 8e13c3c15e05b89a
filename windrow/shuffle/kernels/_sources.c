/* Draws which source each row of a mixture comes from; windrow/shuffle/kernels/row_positions.py calls it.
 *
 * Its Python twins are in `windrow.shuffle.order.source_draws` and `windrow.shuffle.order.token_shares`, which describe the
 * rules, and tests compare them bit for bit. In draws, no product is added to anything here, so no compiler can fuse the two and round once instead of twice.
 */
#include "_types.h"

/* Draw the first `rows` rows of a period of `total`, each by two of `draws`, from 0 to less than 1. Places up to `horizon`
 * matter: no row that can come among these is due later. Scratch: `next` has four numbers for each source, `sums` one;
 * `slack` and `tight` have horizon + 1. */
EXPORT void windrow_draw_sources(int64_t sources, const int64_t *weights, int64_t total, int64_t rows, int64_t horizon,
                                 const double *draws, int64_t *next, double *sums, int32_t *slack, int32_t *tight,
                                 int32_t *out) {
    /* of the next row of each source: its number times the total, the first place it may have, and how many rows there are
     * when it must have come */
    int64_t *begins = next, *releases = begins + sources, *deadlines = releases + sources;
    int64_t *shares = deadlines + sources; /* up to each source, the weights of those that may come */
    memset(slack, 0, (horizon + 1) * sizeof *slack);
    for (int64_t source = 0; source < sources; source++) {
        const int64_t weight = weights[source];
        begins[source] = 0;
        releases[source] = weight ? 0 : total;
        deadlines[source] = weight ? (total + weight - 1) / weight : total;
        for (int64_t number = 1; number <= weight; number++) {
            const int64_t deadline = (number * total + weight - 1) / weight;
            if (deadline > horizon) break;
            slack[deadline]++;
        }
    }
    int64_t due = 0, last = 0;
    for (int64_t place = 1; place <= horizon; place++) {
        due += slack[place];
        slack[place] = (int32_t)(place - due);
    }
    tight[0] = (int32_t)horizon;
    for (int64_t place = horizon - 1; place > 0; place--)
        if (!slack[place]) tight[++last] = (int32_t)place;
    for (int64_t place = 0; place < rows; place++) {
        while (tight[last] <= place) last--;
        const int64_t limit = tight[last];
        int64_t share = 0;
        double sum = 0;
        for (int64_t source = 0; source < sources; source++) {
            if (releases[source] <= place && deadlines[source] <= limit) {
                const int64_t weight = weights[source], end = begins[source] + total;
                const int64_t from = begins[source] > place * weight ? begins[source] : place * weight;
                const int64_t to = end < (place + 1) * weight ? end : (place + 1) * weight;
                sum += (double)(to - from) / (double)(end - from);
                share += weight;
            }
            sums[source] = sum;
            shares[source] = share;
        }
        const double drawn = draws[2 * place] * (sum > 1 ? sum : 1);
        int64_t source = 0;
        if (drawn < sum) {
            while (sums[source] <= drawn) source++;
        } else {
            const int64_t by_share = (int64_t)(draws[2 * place + 1] * (double)share);
            while (source < sources - 1 && shares[source] <= by_share) source++;
        }
        out[place] = (int32_t)source;
        for (int64_t before = deadlines[source] - 1; before > place + 1; before--)
            if (!--slack[before]) tight[++last] = (int32_t)before;
        const int64_t weight = weights[source];
        begins[source] += total;
        releases[source] = begins[source] / weight;
        deadlines[source] = (begins[source] + total + weight - 1) / weight;
    }
}

/* As good as random; `windrow.shuffle.order.token_shares` has the same in Python. */
static uint64_t draw_word(uint64_t seed, uint64_t place, uint64_t source) {
    uint64_t word = seed + place * 0x9E3779B97F4A7C15u + source * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    return word ^ (word >> 31);
}

/* Choose the sources of up to `most` documents, while fewer than `stop` tokens are given. Source s has had `tokens[s]`, and
 * its next documents have the lengths from `starts[s]` to `starts[s + 1]`. Scratch: `next` has a number for each source.
 * Returns the number of documents; `missing` is the source whose next document must be known, or -1. */
EXPORT int64_t windrow_share_tokens(int64_t sources, const int64_t *weights, int64_t *tokens, const int32_t *lengths,
                                    const int64_t *starts, int64_t most, int64_t stop, int64_t place, uint64_t seed,
                                    int64_t *next, int32_t *out, int64_t *missing) {
    int64_t total = 0, given = 0, found = 0;
    for (int64_t source = 0; source < sources; source++) {
        total += weights[source];
        given += tokens[source];
        next[source] = starts[source];
    }
    *missing = -1;
    while (found < most && given < stop) {
        int64_t best = -1, best_end = 0;
        uint64_t best_draw = 0;
        for (int64_t source = 0; source < sources; source++) {
            const int64_t weight = weights[source];
            if (!weight || tokens[source] * total > given * weight) continue;
            if (next[source] == starts[source + 1]) {
                *missing = source;
                return found;
            }
            const int64_t end = tokens[source] + lengths[next[source]];
            const int64_t mine = best < 0 ? 0 : end * weights[best], other = best_end * weight;
            if (best >= 0 && mine > other) continue;
            const uint64_t draw = draw_word(seed, (uint64_t)(place + found), (uint64_t)source);
            if (best < 0 || mine < other || draw > best_draw) {
                best = source;
                best_end = end;
                best_draw = draw;
            }
        }
        given += best_end - tokens[best];
        tokens[best] = best_end;
        next[best]++;
        out[found++] = (int32_t)best;
    }
    return found;
}
