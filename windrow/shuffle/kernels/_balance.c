/* Divides the rows of each step among bins of nearly equal cost; windrow/shuffle/kernels/step_bins.py calls it.
 *
 * Its Python twin is `windrow.shuffle.order.step_balance`, and tests compare the two. Costs are whole numbers here, so
 * that sums do not depend on the order of additions, nor on the machine.
 */
#include "_types.h"

typedef struct {
    int64_t bins, free;
    const int64_t *cost; /* of each row of the step */
    int64_t *load;       /* of each bin */
    int32_t *count, *head, *next, *heap;
} Step;

/* Whether bin a comes before bin b where the lightest is wanted. */
static inline int is_lighter(const Step *s, int32_t a, int32_t b) {
    if (s->load[a] != s->load[b]) return s->load[a] < s->load[b];
    if (s->count[a] != s->count[b]) return s->count[a] < s->count[b];
    return a < b;
}

static void sift_down(const Step *s, int64_t at, int64_t size) {
    int32_t *heap = s->heap;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= size) return;
        if (child + 1 < size && is_lighter(s, heap[child + 1], heap[child])) child++;
        if (!is_lighter(s, heap[child], heap[at])) return;
        const int32_t moved = heap[at];
        heap[at] = heap[child];
        heap[child] = moved;
        at = child;
    }
}

/* Order the step's rows by falling cost, ties by number. A key is the inverted 32 bits of a cost above the row's number,
 * so that no pass looks a cost up. `keys` and `other` take a word for each row. */
static void sort_rows(const int64_t *cost, int64_t rows, uint64_t *keys, uint64_t *other, int32_t *order) {
    if (rows <= 48) {
        for (int64_t i = 0; i < rows; i++) {
            const uint64_t key = (uint64_t)(UINT32_MAX - (uint32_t)cost[i]) << 32 | (uint32_t)i;
            int64_t at = i;
            for (; at > 0 && keys[at - 1] > key; at--) keys[at] = keys[at - 1];
            keys[at] = key;
        }
        for (int64_t i = 0; i < rows; i++) order[i] = (int32_t)keys[i];
        return;
    }
    uint32_t starts[4][256] = {{0}};
    for (int64_t i = 0; i < rows; i++) {
        const uint32_t high = UINT32_MAX - (uint32_t)cost[i];
        keys[i] = (uint64_t)high << 32 | (uint32_t)i;
        for (int k = 0; k < 4; k++) starts[k][high >> 8 * k & 255]++;
    }
    uint64_t *from = keys, *to = other;
    for (int k = 0; k < 4; k++) {
        const int shift = 32 + 8 * k;
        if (starts[k][from[0] >> shift & 255] == (uint32_t)rows) continue;
        uint32_t before = 0;
        for (int digit = 0; digit < 256; digit++) {
            const uint32_t count = starts[k][digit];
            starts[k][digit] = before;
            before += count;
        }
        for (int64_t i = 0; i < rows; i++) to[starts[k][from[i] >> shift & 255]++] = from[i];
        uint64_t *const swapped = from;
        from = to;
        to = swapped;
    }
    for (int64_t i = 0; i < rows; i++) order[i] = (int32_t)from[i];
}

/* Load, count and number of a bin are one word where there are few bins and rows, so that the least word is the lightest
 * bin: 45 bits, 14 and 4. */
#define FEW_BINS 16
#define FEW_ROWS 8192
#define COUNT_SHIFT 4
#define LOAD_SHIFT 18

/* Put a row into its bin's list, behind those that cost at least as much. */
static void insert(const Step *s, int32_t bin, int32_t row) {
    int32_t *at = &s->head[bin];
    while (*at >= 0 && s->cost[*at] >= s->cost[row]) at = &s->next[*at];
    s->next[row] = *at;
    *at = row;
    s->load[bin] += s->cost[row];
    s->count[bin]++;
}

static void take_out(const Step *s, int32_t bin, int32_t row) {
    int32_t *at = &s->head[bin];
    while (*at != row) at = &s->next[*at];
    *at = s->next[row];
    s->load[bin] -= s->cost[row];
    s->count[bin]--;
}

/* Exchange a row of the heaviest bin for a cheaper one of another bin, or move one there, so that the heavier of the
 * two becomes as light as possible. Returns 0 if no exchange makes it lighter. */
static int relieve(const Step *s, int32_t heavy) {
    int64_t best = s->load[heavy];
    int32_t best_bin = -1, best_row = -1, best_other = -1;
    for (int32_t bin = 0; bin < s->bins; bin++) {
        const int64_t gap = s->load[heavy] - s->load[bin];
        if (bin == heavy || gap < 2 || s->load[heavy] - gap / 2 >= best) continue;
        int32_t other = s->head[bin], before = -1;
        for (int32_t row = s->head[heavy]; row >= 0; row = s->next[row]) {
            /* the other row should cost less by half the gap */
            while (other >= 0 && s->cost[row] - s->cost[other] < gap / 2) {
                before = other;
                other = s->next[other];
            }
            for (int k = 0; k < 2; k++) {
                const int32_t found = k ? other : before;
                if (found < 0) continue;
                const int64_t less = s->cost[row] - s->cost[found];
                if (less <= 0 || less >= gap) continue;
                const int64_t heavier = less > gap - less ? s->load[bin] + less : s->load[heavy] - less;
                if (heavier < best) {
                    best = heavier;
                    best_bin = bin;
                    best_row = row;
                    best_other = found;
                }
            }
            if (s->free && s->count[heavy] > 1 && s->cost[row] > 0 && s->cost[row] < gap) {
                const int64_t less = s->cost[row];
                const int64_t heavier = less > gap - less ? s->load[bin] + less : s->load[heavy] - less;
                if (heavier < best) {
                    best = heavier;
                    best_bin = bin;
                    best_row = row;
                    best_other = -1;
                }
            }
        }
    }
    if (best_bin < 0) return 0;
    take_out(s, heavy, best_row);
    if (best_other >= 0) {
        take_out(s, best_bin, best_other);
        insert(s, heavy, best_other);
    }
    insert(s, best_bin, best_row);
    return 1;
}

/* Memory for dividing a step: `words` of 32 bits for 5 * bins + 2 * rows numbers, `keys` for 2 * rows, `loads` for bins. */
typedef struct {
    int64_t *loads;
    int32_t *words;
    uint64_t *keys;
} Scratch;

/* Divide the rows of one step, which have costs from 0 to 2^32 - 1, among bins. `room` has the rows that each bin takes,
 * at least all of them together; with `free`, a bin takes any number. Writes the bin of each row. */
static void divide(const int64_t *cost, int64_t rows, int64_t bins, int64_t free, int64_t exchanges,
                   const int64_t *room, const Scratch *scratch, int32_t *out) {
    int64_t *const loads = scratch->loads;
    uint64_t *const keys = scratch->keys;
    int32_t *const count = scratch->words, *head = count + bins, *heap = head + bins, *tail = heap + bins;
    int32_t *const left = tail + bins, *next = left + bins, *order = next + rows;
    const Step s = {bins, free, cost, loads, count, head, next, heap};
    int64_t total = 0, largest = 0, size = 0;
    for (int32_t bin = 0; bin < bins; bin++) {
        loads[bin] = 0;
        count[bin] = 0;
        head[bin] = tail[bin] = -1;
        left[bin] = free ? 0 : (int32_t)room[bin];
        if (free || room[bin] > 0) heap[size++] = bin;
    }
    sort_rows(s.cost, rows, keys, keys + rows, order);
    const int scans = bins <= FEW_BINS && rows <= FEW_ROWS;
    const int32_t even = (int32_t)((bins + 1) & ~1);
    uint64_t weights[FEW_BINS];
    if (scans)
        for (int32_t bin = 0; bin < even; bin++)
            weights[bin] = bin < bins && (free || room[bin] > 0) ? (uint64_t)bin : UINT64_MAX;
    for (int64_t i = 0; i < rows; i++) {
        const int32_t row = order[i];
        int32_t bin = heap[0];
        if (scans) {
            /* two by two, so that few comparisons wait for another */
            uint64_t lightest = UINT64_MAX, second = UINT64_MAX;
            for (int32_t k = 0; k < even; k += 2) {
                lightest = weights[k] < lightest ? weights[k] : lightest;
                second = weights[k + 1] < second ? weights[k + 1] : second;
            }
            lightest = second < lightest ? second : lightest;
            bin = (int32_t)(lightest & (FEW_BINS - 1));
            weights[bin] += ((uint64_t)s.cost[row] << LOAD_SHIFT) + (1 << COUNT_SHIFT);
        }
        /* rows come by falling cost, so a bin's list is in order */
        next[row] = -1;
        if (tail[bin] < 0) head[bin] = row; else next[tail[bin]] = row;
        tail[bin] = row;
        loads[bin] += s.cost[row];
        count[bin]++;
        total += s.cost[row];
        if (s.cost[row] > largest) largest = s.cost[row];
        const int is_full = !free && --left[bin] == 0;
        if (scans) {
            if (is_full) weights[bin] = UINT64_MAX;
            continue;
        }
        if (is_full) heap[0] = heap[--size];
        sift_down(&s, 0, size);
    }
    const int64_t mean = total / bins, least = mean > largest ? mean : largest;
    for (int64_t k = 0; k < exchanges; k++) {
        int32_t heavy = 0;
        for (int32_t bin = 1; bin < bins; bin++)
            if (loads[bin] > loads[heavy]) heavy = bin;
        if (loads[heavy] <= least + least / 1024 || !relieve(&s, heavy)) break;
    }
    for (int32_t bin = 0; bin < bins; bin++)
        for (int32_t row = head[bin]; row >= 0; row = next[row]) out[row] = bin;
}

/* Divide the rows of each step, which are those from starts[step] to starts[step + 1], as `divide` does. The rooms of a
 * step's bins are `stride` behind those of the step before; 0: all steps have the same. The scratch has room for the step
 * with the most rows. */
EXPORT void windrow_balance_steps(int64_t steps, const int64_t *starts, int64_t bins, int64_t free, int64_t exchanges,
                                  int64_t stride, const int64_t *costs, const int64_t *room, int64_t *loads,
                                  int32_t *words, uint64_t *keys, int32_t *out) {
    const Scratch scratch = {loads, words, keys};
    for (int64_t step = 0; step < steps; step++) {
        const int64_t first = starts[step], rows = starts[step + 1] - first;
        divide(costs + first, rows, bins, free, exchanges, room + step * stride, &scratch, out + first);
    }
}

/* What the search for the end of a step is given. Costs are counted in `units` parts of the largest. `parts`: how many
 * microbatches a bin has, each of which is padded to its longest row; 0: no row is padded. */
typedef struct {
    int64_t bins, limit, exchanges, parts;
    double units;
    const double *costs, *tokens;
    double *sums;   /* of each bin, or of each microbatch of one */
    int64_t *whole; /* of each row, as is all that follows */
    int32_t *out, *part;
    double *own_costs, *own_tokens; /* of the rows of one bin */
    Scratch scratch;
} Search;

static void divide_evenly(const Search *s, const double *costs, int64_t rows, int64_t bins, int32_t *out) {
    double largest = 0;
    for (int64_t i = 0; i < rows; i++)
        if (costs[i] > largest) largest = costs[i];
    const double scale = largest > 0 ? s->units / largest : 0;
    for (int64_t i = 0; i < rows; i++) {
        const double cost = costs[i] * scale;
        s->whole[i] = cost < s->units ? (int64_t)cost : (int64_t)s->units;
    }
    divide(s->whole, rows, bins, 1, s->exchanges, 0, &s->scratch, out);
}

/* The tokens of each bin into which rows have just been divided. */
static void sum_tokens(const Search *s, const double *tokens, int64_t rows, int64_t bins, const int32_t *out) {
    for (int64_t bin = 0; bin < bins; bin++) s->sums[bin] = 0;
    if (!s->parts) {
        for (int64_t i = 0; i < rows; i++) s->sums[out[i]] += tokens[i];
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        if (tokens[i] > s->sums[out[i]]) s->sums[out[i]] = tokens[i];
    for (int64_t bin = 0; bin < bins; bin++) s->sums[bin] *= s->scratch.words[bin]; /* its rows, see `divide` */
}

/* The tokens of a bin's rows, where each of its microbatches is padded by itself. */
static double sum_microbatches(const Search *s, int64_t rows, int32_t bin) {
    int64_t own = 0;
    for (int64_t i = 0; i < rows; i++)
        if (s->out[i] == bin) {
            s->own_costs[own] = s->costs[i];
            s->own_tokens[own++] = s->tokens[i];
        }
    divide_evenly(s, s->own_costs, own, s->parts, s->part);
    sum_tokens(s, s->own_tokens, own, s->parts, s->part);
    double sum = 0;
    for (int64_t part = 0; part < s->parts; part++) sum += s->sums[part];
    return sum;
}

/* Whether the first rows are divided with at most `limit` tokens in each bin. */
static int fits(const Search *s, int64_t rows) {
    divide_evenly(s, s->costs, rows, s->bins, s->out);
    if (s->parts <= 1) sum_tokens(s, s->tokens, rows, s->bins, s->out);
    for (int32_t bin = 0; bin < s->bins; bin++) {
        const double sum = s->parts <= 1 ? s->sums[bin] : sum_microbatches(s, rows, bin);
        if (sum > (double)s->limit) return 0;
    }
    return 1;
}

/* How many of some rows make a step: the most that are divided with at most `limit` tokens in each bin; with padding,
 * by bisection, rows that are and that one more is not. As many rows as bins always are. The arrays from `sums` to
 * `out` are scratch, `sums` and `loads` for each bin or microbatch, the others for each row. */
EXPORT int64_t windrow_cut(int64_t most, int64_t bins, int64_t limit, int64_t exchanges, int64_t units, int64_t parts,
                           const double *costs, const double *tokens, double *sums, int64_t *whole, double *own,
                           int64_t *loads, int32_t *words, uint64_t *keys, int32_t *out) {
    const Search s = {bins,  limit, exchanges,  parts, (double)units, costs,      tokens,
                      sums,  whole, out,        out + most, own,      own + most, {loads, words, keys}};
    if (most <= bins) return most;
    if (!parts) {
        int64_t rows = most;
        while (rows > bins && !fits(&s, rows)) rows--;
        return rows;
    }
    int64_t low = 0, high = most - bins;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (fits(&s, bins + 1 + middle)) low = middle + 1; else high = middle;
    }
    return bins + low;
}

/* Number rows by group, in their order: row i gets the next number of group keys[i]. Numbers start at `starts`, which
 * end behind the last number of each group. */
EXPORT void windrow_number(int64_t rows, const uint32_t *keys, int64_t *starts, uint32_t *out) {
    for (int64_t i = 0; i < rows; i++) out[i] = (uint32_t)starts[keys[i]]++;
}

/* Find the run of each row by its number: the last one whose first number is not above it. `firsts` rise, and no number
 * is below the first of them. Writes the ids of the runs, of 2 or 4 bytes, and the places within them. */
EXPORT void windrow_find_runs(int64_t rows, const uint32_t *numbers, int64_t runs, const uint32_t *firsts, int64_t width,
                              const void *ids, void *out_ids, uint32_t *out_places) {
    for (int64_t i = 0; i < rows; i++) {
        const uint32_t *at = firsts;
        for (int64_t left = runs; left > 1;) {
            const int64_t half = left / 2;
            at = at[half] <= numbers[i] ? at + half : at;
            left -= half;
        }
        out_places[i] = numbers[i] - *at;
        if (width == 2) ((uint16_t *)out_ids)[i] = ((const uint16_t *)ids)[at - firsts];
        else ((uint32_t *)out_ids)[i] = ((const uint32_t *)ids)[at - firsts];
    }
}
