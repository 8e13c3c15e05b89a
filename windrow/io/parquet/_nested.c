/* Decodes column chunks below one list, or below structs only; windrow/io/parquet/nested_decoder.py calls it.
 *
 * Lists can be null or empty, but no element, struct or value is null; all else is declined. Format: "Nested Encoding"
 * in parquet-format's README.
 */
#include <stdint.h>
#include <string.h>

#include "_pages.h"

#define EXPORT __attribute__((visibility("default")))

/* A chunk to decode: the address of its pages, and its properties from the footer, of which `values` counts levels;
 * the maximal repetition and definition level, and the definition level of a list that is not null; the address of the
 * memory of all values of the column and how many fit; of (rows + 1) offsets and (rows) validity bytes of the chunk; the
 * number of items before it. The results: whether it was decoded, the items after it, and its null lists. */
typedef struct {
    int64_t address, stored_bytes, codec, function, width, values, rows, max_rep, max_def, list_def;
    int64_t out, capacity, offsets, valid, first;
    int64_t decoded, items, nulls;
} nested_chunk;

typedef struct {
    Column column; /* the first member: its address is that of the whole */
    nested_chunk *chunk;
    int64_t row;
    uint8_t *levels;
    int64_t levels_bytes;
} Nested;

/* Notes where a row begins; returns 0 if the chunk has more rows than the footer states. */
static inline int begin_row(Nested *nested, int64_t item) {
    if (nested->row >= nested->chunk->rows) return 0;
    ((int64_t *)(intptr_t)nested->chunk->offsets)[nested->row++] = item;
    return 1;
}

/* Finds the rows of a page in which every level stands for a value. */
static int find_rows(Nested *nested, Reader *r, int64_t count) {
    const int64_t first = nested->chunk->items;
#define ONE(at, v) if (!v && !begin_row(nested, first + (at))) return DECLINED;
#define RUN(at, many, v)                       \
    if (v > 1) return DECLINED;                \
    for (int64_t j = 0; j < many && !v; j++)   \
        if (!begin_row(nested, first + (at) + j)) return DECLINED;
    EACH_RUN(1, count, ONE, RUN);
#undef ONE
#undef RUN
    return 0;
}

static int copy_levels(Reader *r, int width, int64_t count, uint8_t *to) {
#define ONE(at, v) to[at] = (uint8_t)v;
#define RUN(at, many, v) memset(to + (at), (int)(v & 255), many);
    EACH_RUN(width, count, ONE, RUN);
#undef ONE
#undef RUN
    return 0;
}

/* Finds the rows of a page with null or empty lists; returns its number of values. */
static int64_t find_some_rows(Nested *nested, Reader *rep, Reader *def, int def_bits, int64_t count) {
    nested_chunk *chunk = nested->chunk;
    uint8_t *reps = nested->levels, *defs = nested->levels + count, *valid = (uint8_t *)(intptr_t)chunk->valid;
    if (2 * count > nested->levels_bytes) return DECLINED;
    if (copy_levels(rep, 1, count, reps) || copy_levels(def, def_bits, count, defs)) return DECLINED;
    int64_t items = 0;
    for (int64_t i = 0; i < count; i++) {
        const int is_value = defs[i] == chunk->max_def;
        if (reps[i] > 1 || (!is_value && (reps[i] || defs[i] > chunk->list_def))) return DECLINED;
        if (!reps[i] && !begin_row(nested, chunk->items + items)) return DECLINED;
        if (!is_value && defs[i] < chunk->list_def) {
            valid[nested->row - 1] = 0;
            chunk->nulls++;
        }
        items += is_value;
    }
    return items;
}

static int bits_of(int64_t level) {
    int bits = 0;
    for (; level; level >>= 1) bits++;
    return bits;
}

static int read_nested(Column *column, Reader *r, const Page *page) {
    Nested *nested = (Nested *)column;
    nested_chunk *chunk = nested->chunk;
    Reader body, rep = {r->at, r->at, 0}, def = rep;
    const int v2 = page->type == DATA_PAGE_V2, def_bits = bits_of(chunk->max_def);
    int64_t count = page->values, skip = 0;
    if (count < 0 || count > column->rows - column->done) return DECLINED;
    if (v2) {
        if (page->rep_bytes < 0 || page->def_bytes < 0) return DECLINED;
        if (page->rep_bytes > page->stored_bytes || page->def_bytes > page->stored_bytes - page->rep_bytes)
            return DECLINED;
        skip = page->rep_bytes + page->def_bytes;
        rep.end += page->rep_bytes;
        def = (Reader){rep.end, rep.end + page->def_bytes, 0};
    } else if ((chunk->max_rep && page->rep_levels != RLE) || (chunk->max_def && page->levels != RLE)) {
        return DECLINED;
    }
    if (decompress_page(column, r, page, skip, 0, &body)) return DECLINED;
    if (!v2 && chunk->max_rep && find_levels(&body, &rep)) return DECLINED;
    if (!v2 && chunk->max_def && find_levels(&body, &def)) return DECLINED;
    Reader again = def;
    const int is_full = !chunk->max_def || !check_levels(&again, def_bits, (uint64_t)chunk->max_def, count);
    column->done += count;
    if (!chunk->max_rep) {
        if (!is_full || count > chunk->rows - nested->row) return DECLINED;
        nested->row += count;
    } else {
        if (is_full ? find_rows(nested, &rep, count) : (count = find_some_rows(nested, &rep, &def, def_bits, count)) < 0)
            return DECLINED;
    }
    if (count > chunk->capacity - chunk->items) return DECLINED;
    column->out = (uint8_t *)(intptr_t)chunk->out + chunk->items * chunk->width;
    chunk->items += count;
    return decode_values(column, page->encoding, &body, count, NULL);
}

/* Decodes several chunks of numbers of 4 or 8 bytes; `scratch` holds the dictionary and one decompressed page, `levels`
 * two bytes for each level of a page with null or empty lists. */
EXPORT void windrow_decode_nested(int64_t count, nested_chunk *chunks, uint8_t *scratch, int64_t scratch_bytes,
                                  uint8_t *levels, int64_t levels_bytes) {
    for (nested_chunk *chunk = chunks; chunk < chunks + count; chunk++) {
        Nested nested = {.column = {.kind = NUMBERS, .width = chunk->width, .bytes = chunk->width, .rows = chunk->values,
                                    .codec = (int)chunk->codec, .function = (intptr_t)chunk->function,
                                    .free = scratch, .free_bytes = scratch_bytes},
                         .chunk = chunk, .levels = levels, .levels_bytes = levels_bytes};
        if ((chunk->width != 4 && chunk->width != 8) || chunk->max_rep > 1 || chunk->max_def > 127) continue;
        chunk->items = chunk->first;
        memset((uint8_t *)(intptr_t)chunk->valid, 1, chunk->max_rep ? chunk->rows : 0);
        const int failed = decode_pages(&nested.column, (const uint8_t *)(intptr_t)chunk->address, chunk->stored_bytes,
                                        read_nested);
        int64_t *offsets = (int64_t *)(intptr_t)chunk->offsets;
        chunk->decoded = !failed && nested.row == chunk->rows;
        if (!chunk->decoded || !chunk->max_rep) continue;
        /* a chunk begins with a row */
        chunk->decoded = !chunk->rows || offsets[0] == chunk->first;
        offsets[chunk->rows] = chunk->items;
    }
}
