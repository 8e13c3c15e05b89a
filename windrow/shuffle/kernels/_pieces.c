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
