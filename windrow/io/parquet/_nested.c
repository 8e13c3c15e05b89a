/* Decodes column chunks below one list, or below structs only; windrow/io/parquet/chunk_decoder.py calls it.
 *
 * Lists can be null or empty, but no element, struct or value is null; all else is declined. Format: "Nested Encoding"
 * in parquet-format's README.
 */
#include <stdint.h>
#include <string.h>

#include "_pages.h"

/* A chunk to decode: the address of its pages, and of pages that lie apart ahead of them, and its properties from the footer, of which `values` counts levels;
 * the maximal repetition and definition level, and the definition level of a list that is not null; the address of the
 * memory of all values of the column and how many fit; of (rows + 1) offsets and (rows) validity bytes of the chunk; the
 * number of items before it. The results: whether it was decoded, the items after it, and its null lists. */
typedef struct {
    int64_t address, stored_bytes, ahead, ahead_bytes, codec, width, values, rows, max_rep, max_def, list_def;
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

/* Unpacks 8 levels of one or two bits, a byte each. */
static inline uint64_t unpack_levels(const uint8_t *from, int width) {
    if (width == 1) {
        /* bit k of the byte stays in byte k, then moves to its lowest bit */
        const uint64_t bits = from[0] * 0x0101010101010101u & 0x8040201008040201u;
        return (bits + 0x7F7F7F7F7F7F7F7Fu) >> 7 & 0x0101010101010101u;
    }
    uint64_t levels = 0;
    for (int k = 0; k < 2; k++) {
        const uint64_t byte = from[k];
        levels |= ((byte | byte << 6 | byte << 12 | byte << 18) & 0x03030303u) << (32 * k);
    }
    return levels;
}

/* Writes levels, a byte each; `to` has room for 8 more than `count`. */
static int copy_levels(Reader *r, int width, int64_t count, uint8_t *to) {
    const uint8_t *start = r->at;
    /* most levels have one or two bits, in groups of 8 */
    for (int64_t i = 0; i < count && (width == 1 || width == 2);) {
        const uint64_t head = read_varint(r);
        const int64_t groups = (int64_t)(head >> 1), left = (r->end - r->at) / width;
        if (r->bad || head >> 33 || !groups) return DECLINED;
        if (head & 1) {
            const int64_t needed = (count - i + 7) / 8 < groups ? (count - i + 7) / 8 : groups;
            if (groups > left) break;
            for (int64_t k = 0; k < needed; k++) {
                const uint64_t levels = unpack_levels(r->at + k * width, width);
                memcpy(to + i + 8 * k, &levels, sizeof levels);
            }
            r->at += groups * width;
            i += 8 * groups;
        } else {
            const int64_t many = groups < count - i ? groups : count - i;
            if (r->at >= r->end) return DECLINED;
            memset(to + i, *r->at++, many);
            i += many;
        }
        if (i >= count) return 0;
    }
    r->at = start;
#define ONE(at, v) to[at] = (uint8_t)v;
#define RUN(at, many, v) memset(to + (at), (int)(v & 255), many);
    EACH_RUN(width, count, ONE, RUN);
#undef ONE
#undef RUN
    return 0;
}

/* Notes the null lists among rows that have no item. */
static void find_nulls(Nested *nested, const uint8_t *reps, const uint8_t *defs, int64_t count, int64_t row) {
    nested_chunk *chunk = nested->chunk;
    for (int64_t i = 0; i < count; i++) {
        row += !reps[i];
        if (defs[i] < chunk->list_def) {
            ((uint8_t *)(intptr_t)chunk->valid)[row - 1] = 0;
            chunk->nulls++;
        }
    }
}

/* Finds the rows of a page with null or empty lists; returns its number of values. */
static int64_t find_some_rows(Nested *nested, Reader *rep, Reader *def, int def_bits, int64_t count) {
    const nested_chunk *chunk = nested->chunk;
    uint8_t *reps = nested->levels, *defs = nested->levels + count + 8;
    if (2 * (count + 8) > nested->levels_bytes) return DECLINED;
    if (copy_levels(rep, 1, count, reps) || copy_levels(def, def_bits, count, defs)) return DECLINED;
    const uint8_t value = (uint8_t)chunk->max_def, list = (uint8_t)(chunk->list_def < 0 ? 0 : chunk->list_def);
    uint8_t wrong = 0, null = 0;
    int64_t continued = 0;
    for (int64_t i = 0; i < count; i++) {
        /* what is no value is a row without items */
        wrong |= (reps[i] > 1) | ((defs[i] != value) & (reps[i] | (defs[i] > list)));
        null |= defs[i] < list;
        continued += reps[i];
    }
    if (wrong || count - continued > chunk->rows - nested->row) return DECLINED;
    int64_t *offsets = (int64_t *)(intptr_t)chunk->offsets, row = nested->row, items = chunk->items;
    for (int64_t i = 0; i < count; i++) {
        offsets[row] = items;
        row += !reps[i];
        items += defs[i] == value;
    }
    if (null) find_nulls(nested, reps, defs, count, nested->row);
    nested->row = row;
    return items - chunk->items;
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
    return decode_values(column, page->encoding, &body, count, NULL, 0);
}

/* Decodes several chunks of numbers of 4 or 8 bytes; `scratch` holds the dictionary and one decompressed page, `levels`
 * two bytes for each level of a page with null or empty lists. */
EXPORT void windrow_decode_nested(int64_t count, nested_chunk *chunks, const system_codecs *system, uint8_t *scratch,
                                  int64_t scratch_bytes, uint8_t *levels, int64_t levels_bytes) {
    for (nested_chunk *chunk = chunks; chunk < chunks + count; chunk++) {
        Nested nested = {.column = {.kind = NUMBERS, .width = chunk->width, .bytes = chunk->width, .rows = chunk->values,
                                    .codec = (int)chunk->codec, .system = system,
                                    .free = scratch, .free_bytes = scratch_bytes},
                         .chunk = chunk, .levels = levels, .levels_bytes = levels_bytes};
        if ((chunk->width != 4 && chunk->width != 8) || chunk->max_rep > 1 || chunk->max_def > 127) continue;
        chunk->items = chunk->first;
        if (chunk->max_rep) memset((uint8_t *)(intptr_t)chunk->valid, 1, chunk->rows);
        const Bytes ahead = {(const uint8_t *)(intptr_t)chunk->ahead, chunk->ahead_bytes};
        const Bytes pages = {(const uint8_t *)(intptr_t)chunk->address, chunk->stored_bytes};
        const int failed = decode_pages(&nested.column, ahead, pages, read_nested);
        int64_t *offsets = (int64_t *)(intptr_t)chunk->offsets;
        chunk->decoded = !failed && nested.row == chunk->rows;
        if (!chunk->decoded || !chunk->max_rep) continue;
        /* a chunk begins with a row, and without rows it has no items */
        offsets[chunk->rows] = chunk->items;
        chunk->decoded = offsets[0] == chunk->first;
    }
}
