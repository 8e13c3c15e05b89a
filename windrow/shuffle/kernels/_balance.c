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

/* Order the step's rows by falling cost, ties by number: a radix sort by the 32 bits of a cost. */
static void sort_rows(const int64_t *cost, int64_t rows, int32_t *order, int32_t *other) {
    for (int64_t i = 0; i < rows; i++) order[i] = (int32_t)i;
    if (rows <= 48) {
        for (int64_t i = 1; i < rows; i++) {
            const int32_t row = order[i];
            int64_t at = i;
            while (at > 0 && cost[order[at - 1]] < cost[row]) {
                order[at] = order[at - 1];
                at--;
            }
            order[at] = row;
        }
        return;
    }
    int32_t *from = order, *to = other;
    for (int shift = 0; shift < 32; shift += 8) {
        int64_t starts[257] = {0};
        for (int64_t i = 0; i < rows; i++) starts[256 - ((cost[from[i]] >> shift) & 255)]++;
        if (starts[256 - ((cost[from[0]] >> shift) & 255)] == rows) continue;
        for (int k = 1; k <= 256; k++) starts[k] += starts[k - 1];
        /* starts[256 - digit] is where the rows of the digit end */
        for (int64_t i = rows - 1; i >= 0; i--) to[--starts[256 - ((cost[from[i]] >> shift) & 255)]] = from[i];
        int32_t *const swapped = from;
        from = to;
        to = swapped;
    }
    if (from != order) memcpy(order, from, (size_t)rows * sizeof *order);
}

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

/* Memory for dividing a step: words of 32 bits for 5 * bins + 3 * rows numbers, and loads of 64 bits for each bin. */
typedef struct {
    int64_t *loads;
    int32_t *words;
} Scratch;

/* Divide the rows of one step, which have costs from 0 to 2^32 - 1, among bins. `room` has the rows that each bin takes,
 * at least all of them together; with `free`, a bin takes any number. Writes the bin of each row. */
static void divide(const int64_t *cost, int64_t rows, int64_t bins, int64_t free, int64_t exchanges,
                   const int64_t *room, const Scratch *scratch, int32_t *out) {
    int64_t *const loads = scratch->loads;
    int32_t *const count = scratch->words, *head = count + bins, *heap = head + bins, *tail = heap + bins;
    int32_t *const left = tail + bins, *next = left + bins, *order = next + rows, *other = order + rows;
    const Step s = {bins, free, cost, loads, count, head, next, heap};
    int64_t total = 0, largest = 0, size = 0;
    for (int32_t bin = 0; bin < bins; bin++) {
        loads[bin] = 0;
        count[bin] = 0;
        head[bin] = tail[bin] = -1;
        left[bin] = free ? 0 : (int32_t)room[bin];
        if (free || room[bin] > 0) heap[size++] = bin;
    }
    sort_rows(cost, rows, order, other);
    for (int64_t i = 0; i < rows; i++) {
        const int32_t row = order[i], bin = heap[0];
        /* rows come by falling cost, so a bin's list is in order */
        next[row] = -1;
        if (tail[bin] < 0) head[bin] = row; else next[tail[bin]] = row;
        tail[bin] = row;
        loads[bin] += cost[row];
        count[bin]++;
        total += cost[row];
        if (cost[row] > largest) largest = cost[row];
        if (!free && --left[bin] == 0) heap[0] = heap[--size];
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

/* Divide the rows of each step, which are those from starts[step] to starts[step + 1], as `divide` does. `words` has
 * room for the step with the most rows. */
EXPORT void windrow_balance(int64_t steps, const int64_t *starts, int64_t bins, int64_t free, int64_t exchanges,
                            const int64_t *costs, const int64_t *room, int64_t *loads, int32_t *words, int32_t *out) {
    const Scratch scratch = {loads, words};
    for (int64_t step = 0; step < steps; step++) {
        const int64_t first = starts[step], rows = starts[step + 1] - first;
        divide(costs + first, rows, bins, free, exchanges, room, &scratch, out + first);
    }
}

/* How many of some rows make a step: the most that are divided with at most `limit` tokens in each bin. As many rows as
 * bins always are. `whole` and `out` are scratch for each row, `sums` for each bin. */
EXPORT int64_t windrow_cut(int64_t most, int64_t bins, int64_t limit, int64_t exchanges, const double *costs,
                           const double *tokens, int64_t *whole, double *sums, int64_t *loads, int32_t *words,
                           int32_t *out, const double *units) {
    const Scratch scratch = {loads, words};
    int64_t rows = most;
    for (; rows > bins; rows--) {
        double largest = 0, heaviest = 0;
        for (int64_t i = 0; i < rows; i++)
            if (costs[i] > largest) largest = costs[i];
        const double scale = largest > 0 ? *units / largest : 0;
        for (int64_t i = 0; i < rows; i++) {
            const double cost = costs[i] * scale;
            whole[i] = (int64_t)(cost < *units ? cost : *units);
        }
        divide(whole, rows, bins, 1, exchanges, 0, &scratch, out);
        for (int64_t bin = 0; bin < bins; bin++) sums[bin] = 0;
        for (int64_t i = 0; i < rows; i++) sums[out[i]] += tokens[i];
        for (int64_t bin = 0; bin < bins; bin++)
            if (sums[bin] > heaviest) heaviest = sums[bin];
        if (heaviest <= (double)limit) break;
    }
    return rows;
}

/* Number rows by group, in their order: row i gets the next number of group keys[i]. Numbers start at `starts`, which
 * end behind the last number of each group. */
EXPORT void windrow_number(int64_t rows, const uint32_t *keys, int64_t *starts, uint32_t *out) {
    for (int64_t i = 0; i < rows; i++) out[i] = (uint32_t)starts[keys[i]]++;
}
