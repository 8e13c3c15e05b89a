/* Draws which source each row of a mixture comes from; windrow/shuffle/kernels/row_positions.py calls it.
 *
 * Its Python twin is in `windrow.shuffle.order.source_draws`, which describes the rule, and tests compare the two bit for
 * bit. No product is added to anything here, so no compiler can fuse the two and round once instead of twice.
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
