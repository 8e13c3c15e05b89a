/* Decodes simple Parquet column chunks; windrow/io/parquet/chunk_decoder.py calls it through ctypes.
 *
 * A chunk is supported if its values are flat: numbers of 4 or 8 bytes, booleans, decimals or text. Its pages are
 * uncompressed, Snappy, zstd or LZ4; plain, dictionary, delta or byte-stream-split encoded. Anything else, and any
 * irregularity, is declined with a negative code: Arrow then reads the chunk and reports its errors.
 * So every read and write is bounds-checked here, and this code never reports errors itself.
 *
 * Formats: parquet-format's README and Encodings.md, Thrift's compact protocol, and Snappy's
 * format_description.txt.
 */
#include <stdint.h>
#include <string.h>

#include "_pages.h"

/* Writes zeros for the nulls of a page, so that what is delivered does not depend on what memory held before. */
static void clear_nulls(Column *column, const uint32_t *targets, int64_t count) {
    if (!column->nulls) memset(column->valid, 1, column->valid_rows);
    column->nulls += count;
    for (int64_t i = 0; i < count; i++) {
        column->valid[targets[i]] = 0;
        memset(column->out + (int64_t)targets[i] * column->bytes, 0, column->bytes);
    }
}

/* The target of rows before those to decode: no row has this number. */
#define NOWHERE UINT32_MAX

/* Reads definition levels, 1 for a value and 0 for a null. Returns the number of values, or DECLINED; sets *targets to
 * their targets. Of the values, *before is set to the number of those whose target is NOWHERE. */
static int64_t read_levels(Column *column, Reader levels, int64_t count, const uint32_t **targets, int64_t *before) {
    Reader again = levels, *r = &levels;
    if (!check_levels(&again, 1, 1, count)) return count;
    if (column->valid == NULL) return DECLINED;
    uint32_t *values = column->compact, *nulls = column->compact_end;
    const uint32_t *rows = *targets;
    for (int64_t i = 0; i < count;) {
        const uint64_t head = read_varint(r);
        const int64_t length = (int64_t)(head >> 1);
        if (r->bad || head >> 33 || !length) return DECLINED;
        if (head & 1) {
            if (length > r->end - r->at) return DECLINED;
            for (const uint8_t *group = r->at; group < r->at + length && i < count; group++) {
                const int64_t some = count - i < 8 ? count - i : 8;
                if (*group == 0xFF && some == 8) {
                    /* most groups have no null */
                    memcpy(values, rows + i, 8 * sizeof *values);
                    values += 8;
                } else {
                    for (int64_t k = 0; k < some; k++) {
                        const int is_value = *group >> k & 1;
                        *values = nulls[-1] = rows[i + k];
                        values += is_value;
                        nulls -= !is_value;
                    }
                }
                i += some;
            }
            r->at += length;
        } else {
            const int64_t many = length < count - i ? length : count - i;
            if (r->at >= r->end || *r->at > 1) return DECLINED;
            if (*r->at++) {
                memcpy(values, rows + i, many * sizeof *values);
                values += many;
            } else {
                /* backwards, as one by one */
                for (int64_t k = 0; k < many; k++) *--nulls = rows[i + k];
            }
            i += many;
        }
    }
    const int64_t found = values - column->compact, rows_before = *before;
    for (*before = 0; *before < rows_before && *before < found && column->compact[*before] == NOWHERE;) ++*before;
    /* the last nulls of this memory are the first of the page */
    clear_nulls(column, nulls, column->compact_end - nulls - (rows_before - *before));
    *targets = column->compact;
    return found;
}

static int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }

/* Decodes values of a page of which the first `before` are not needed: they are skipped, or go to the target of the
 * first one that is needed, which is written after them. `targets` is memory of the column. */
static int decode_rest(Column *column, const Page *page, Reader *body, int64_t count, int64_t before, uint32_t *targets,
                       int is_cut) {
    if (count == before) return 0;
    if (page->encoding == PLAIN && (column->kind == NUMBERS || column->kind == DECIMALS)) {
        if (before > (body->end - body->at) / column->width) return DECLINED;
        body->at += before * column->width;
        return decode_values(column, PLAIN, body, count - before, targets + before, is_cut);
    }
    for (int64_t i = 0; i < before; i++) targets[i] = targets[before];
    return decode_values(column, page->encoding, body, count, targets, is_cut);
}

static int read_values(Column *column, Reader *r, const Page *page) {
    Reader body, levels = {r->at, r->at, 0};
    int v2 = page->type == DATA_PAGE_V2;
    const int64_t left = column->rows - column->done;
    if (page->values < 0 || page->values > column->before + left + column->behind) return DECLINED;
    int64_t before = least(page->values, column->before);
    const int64_t taken = least(page->values - before, left), count_before = before;
    column->before -= before;
    column->behind -= page->values - before - taken;
    if (page->values && !taken) return 0;
    if (!v2 && (page->rep_levels < 0 || (column->optional ? page->levels != RLE : page->levels < 0))) return DECLINED;
    if (v2 && (page->nulls < 0 || page->rep_bytes || page->rows != page->values)) return DECLINED;
    if (v2 && (page->def_bytes < 0 || page->def_bytes > page->stored_bytes)) return DECLINED;
    if (v2) levels.end += page->def_bytes;
    int keep = column->text != NULL && page->encoding == PLAIN;
    if (decompress_page(column, r, page, v2 ? page->def_bytes : 0, keep, &body)) return DECLINED;
    if (!v2 && column->optional && find_levels(&body, &levels)) return DECLINED;
    const uint32_t *targets = column->targets + column->done;
    if (before) {
        if (column->ahead == NULL) return DECLINED;
        for (int64_t i = 0; i < before; i++) column->ahead[i] = NOWHERE;
        memcpy(column->ahead + before, targets, taken * sizeof *targets);
        targets = column->ahead;
    }
    int64_t count = before + taken;
    const int is_cut = count < page->values;
    if (column->optional) count = read_levels(column, levels, count, &targets, &before);
    if (count < 0 || (v2 && !is_cut && page->nulls != page->values - count)) return DECLINED;
    /* with rows before, targets are in memory of the column */
    if (count_before ? decode_rest(column, page, &body, count, before, (uint32_t *)targets, is_cut)
                     : decode_values(column, page->encoding, &body, count, targets, is_cut))
        return DECLINED;
    column->done += taken;
    return 0;
}

/* A chunk to decode, or some of its rows: the address of its pages, and of their dictionary if it lies apart; its
 * properties from the footer, its rows, and the rows of its pages before and behind these; the packed bytes of a value
 * and the base to subtract if they are fewer than its width; the index of its first row in `targets`, the addresses of
 * the output and of the validity of its column. The results: whether it was decoded, and the nulls of the column so
 * far. */
typedef struct {
    int64_t address, stored_bytes, dictionary, dictionary_bytes, kind, codec, optional, width, rows, before, behind;
    int64_t bytes, base, first, out, valid;
    int64_t decoded, nulls;
} stored_chunk;

/* What the columns of all chunks share. `compact` and `ahead` have `compact_rows` elements each, if they are not NULL. */
typedef struct {
    int64_t codecs, targets, rows, scratch, scratch_bytes, compact, ahead, compact_rows;
} shared_memory;

static int has_valid_rows(const stored_chunk *chunk, const shared_memory *shared) {
    /* rows have 32 bits, as their targets */
    const int64_t most = UINT32_MAX, rows = chunk->rows, before = chunk->before, behind = chunk->behind;
    if (rows < 0 || rows > most || before < 0 || before > most || behind < 0 || behind > most) return 0;
    return (!shared->compact && !shared->ahead) || before + rows <= shared->compact_rows;
}

static int decode_chunk(Column *column, stored_chunk *chunk, const shared_memory *shared) {
    column->rows = chunk->rows;
    column->before = chunk->before;
    column->behind = chunk->behind;
    column->codec = (int)chunk->codec;
    column->optional = (int)chunk->optional;
    column->system = (const system_codecs *)(intptr_t)shared->codecs;
    column->targets = (const uint32_t *)(intptr_t)shared->targets + chunk->first;
    column->out = (uint8_t *)(intptr_t)chunk->out;
    column->valid = (uint8_t *)(intptr_t)chunk->valid;
    column->valid_rows = shared->rows;
    column->compact = (uint32_t *)(intptr_t)shared->compact;
    column->compact_end = column->compact + shared->compact_rows;
    column->ahead = (uint32_t *)(intptr_t)shared->ahead;
    column->free = (uint8_t *)(intptr_t)shared->scratch;
    column->free_bytes = shared->scratch_bytes;
    const Bytes dictionary = {(const uint8_t *)(intptr_t)chunk->dictionary, chunk->dictionary_bytes};
    const Bytes pages = {(const uint8_t *)(intptr_t)chunk->address, chunk->stored_bytes};
    chunk->decoded = has_valid_rows(chunk, shared) && !decode_pages(column, dictionary, pages, read_values);
    chunk->nulls = column->nulls;
    return (int)chunk->decoded;
}

static int is_supported(const stored_chunk *chunk) {
    const int64_t bytes = chunk->bytes, width = chunk->width;
    if (chunk->kind == BOOLEANS) return bytes == 1;
    if (chunk->kind == DECIMALS) return bytes == DECIMAL_BYTES && width >= 1 && width <= DECIMAL_BYTES;
    if (chunk->kind != NUMBERS || (width != 4 && width != 8) || bytes > width) return 0;
    return bytes == 0 || bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
}

/* Decodes several chunks of fixed-width values.
 *
 * Value i of a chunk is packed and written to row targets[first + i] of its `out`, of `rows` rows. `scratch` holds the
 * dictionary and one decompressed page. A chunk is declined if a value needs more than its packed bytes, or `scratch`
 * is too small. The `out` of a declined chunk can be partially written.
 */
EXPORT void windrow_decode_chunks(int64_t count, stored_chunk *chunks, const shared_memory *shared) {
    for (stored_chunk *chunk = chunks; chunk < chunks + count; chunk++) {
        const int is_next = chunk > chunks && chunk->valid && chunk[-1].valid == chunk->valid;
        Column column = {.kind = (int)chunk->kind, .width = chunk->width, .bytes = chunk->bytes,
                         .base = (uint64_t)chunk->base, .nulls = is_next ? chunk[-1].nulls : 0};
        chunk->nulls = column.nulls;
        if (is_supported(chunk)) decode_chunk(&column, chunk, shared);
    }
}

/* Locates the text values of a chunk.
 *
 * Pages that contain text are decompressed to `text` from offset `used` on, unless the chunk is in `text` and
 * uncompressed: then they stay where they are, and `used` is behind the chunk. at[targets[i]] receives the offset of
 * value i's length, which the value follows. Nulls have offset 0, where the caller put a length of 0. Returns the bytes
 * of `text` used then, of which SLACK bytes stay free; -1 if the chunk is declined.
 */
EXPORT int64_t windrow_locate_text(stored_chunk *chunk, const shared_memory *shared, uint8_t *text, int64_t used,
                                   int64_t text_bytes) {
    Column column = {.kind = TEXT, .width = sizeof(uint32_t), .bytes = sizeof(uint32_t), .nulls = chunk->nulls,
                     .text = text, .text_used = used, .text_bytes = text_bytes};
    if (text_bytes > UINT32_MAX) return DECLINED;
    return decode_chunk(&column, chunk, shared) ? column.text_used : DECLINED;
}

static inline uint32_t text_bytes_at(const uint8_t *at) {
    uint32_t bytes;
    memcpy(&bytes, at, sizeof bytes);
    return bytes;
}

/* Writes the rows + 1 Arrow offsets, of `width` bytes, of concatenated values. Returns the total bytes, which can
 * exceed the range of 4-byte offsets: the caller must check. */
EXPORT int64_t windrow_measure_text(const uint8_t *text, const uint32_t *at, int64_t rows, int64_t width,
                                    void *offsets) {
    int64_t total = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (width == 4) ((int32_t *)offsets)[i] = (int32_t)total;
        else ((int64_t *)offsets)[i] = total;
        total += text_bytes_at(text + at[i]);
    }
    if (width == 4) ((int32_t *)offsets)[rows] = (int32_t)total;
    else ((int64_t *)offsets)[rows] = total;
    return total;
}

/* Gathers and concatenates values of `total` bytes. */
EXPORT void windrow_gather_text(const uint8_t *text, const uint32_t *at, int64_t rows, uint8_t *out, int64_t total) {
    const uint8_t *stop = out + total;
    for (int64_t i = 0; i < rows; i++) {
        const uint8_t *from = text + at[i];
        uint32_t bytes = text_bytes_at(from);
        from += sizeof bytes;
        /* excess bytes are overwritten by the next value; SLACK bytes after the last value are readable */
        if (bytes <= 32 && stop - out >= 32) {
            copy16(out, from);
            copy16(out + 16, from + 16);
        } else {
            memcpy(out, from, bytes);
        }
        out += bytes;
    }
}
