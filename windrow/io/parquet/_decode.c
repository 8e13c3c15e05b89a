/* Decodes simple Parquet column chunks; windrow/io/parquet/chunk_decoder.py calls it through ctypes.
 *
 * A chunk is supported if its values are 4 or 8 bytes wide or text, flat and without nulls, and its
 * pages are uncompressed or Snappy, plain or dictionary encoded. Anything else, and any irregularity, is
 * declined with a negative code: Arrow then reads the chunk and reports its errors.
 * So every read and write is bounds-checked here, and this code never reports errors itself.
 *
 * Formats: parquet-format's README and Encodings.md, Thrift's compact protocol, and Snappy's
 * format_description.txt.
 */
#include <stdint.h>
#include <string.h>

#include "_reader.h"
#include "_snappy.h"
#include "_values.h"

#define EXPORT __attribute__((visibility("default")))

/* --- page headers ---------------------------------------------------------------------- */

typedef struct {
    int64_t type, raw_bytes, stored_bytes, values, encoding, nulls, rows, def_bytes, rep_bytes, levels, rep_levels;
    int has_crc, compressed;
} Page;

/* Reads the header specific to one page type. Fields of DataPageHeader: 1 values, 2 encoding, 3 and 4 encodings
 * of levels; of DataPageHeaderV2: 1 values, 2 nulls, 3 rows, 4 encoding, 5 and 6 bytes of levels,
 * 7 compressed; of DictionaryPageHeader: 1 values, 2 encoding. */
static void read_kind(Reader *r, Page *page, int v2) {
    int id = 0, type;
    while (next_field(r, &id, &type)) {
        if (type == I32) {
            int64_t value = read_int(r);
            if (id == 1) page->values = value;
            else if (id == (v2 ? 4 : 2)) page->encoding = value;
            else if (v2 && id == 2) page->nulls = value;
            else if (v2 && id == 5) page->def_bytes = value;
            else if (v2 && id == 6) page->rep_bytes = value;
            else if (id == 3) *(v2 ? &page->rows : &page->levels) = value;
            else if (id == 4) page->rep_levels = value;
        } else if (v2 && id == 7 && (type == TRUE_ || type == FALSE_)) {
            page->compressed = type == TRUE_;
        } else {
            skip_field(r, type, 1);
        }
    }
}

static Page read_page(Reader *r) {
    /* missing fields stay -1 */
    Page page = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, .compressed = 1};
    int id = 0, type;
    while (next_field(r, &id, &type)) {
        if (type == I32 && id >= 1 && id <= 4) {
            int64_t value = read_int(r);
            if (id == 1) page.type = value;
            else if (id == 2) page.raw_bytes = value;
            else if (id == 3) page.stored_bytes = value;
            else page.has_crc = 1;
        } else if (type == STRUCT && (id == 5 || id == 7 || id == 8)) {
            read_kind(r, &page, id == 8);
        } else {
            skip_field(r, type, 0);
        }
    }
    if (page.raw_bytes < 0 || page.stored_bytes < 0 || page.stored_bytes > r->end - r->at) r->bad = 1;
    return page;
}

/* --- a column chunk --------------------------------------------------------------------- */

enum { DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 };
enum { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, RLE_DICTIONARY = 8 };

typedef struct {
    /* bytes of a value as stored and as packed, and the base that packing subtracts */
    int64_t width, bytes;
    uint64_t base;
    int64_t rows;
    int snappy, optional;
    const uint32_t *targets;
    uint8_t *out;
    /* the caller's scratch memory: the dictionary, followed by free space for pages */
    uint8_t *dictionary, *free;
    int64_t free_bytes;
    /* for text: the memory that keeps decompressed pages; decoded values are offsets into it */
    uint8_t *text;
    int64_t text_used, text_bytes;
    uint64_t entries;
    int64_t done;
} Column;

/* Decompresses a page after its first `skip` bytes, which are uncompressed; `keep` puts it into column->text. */
static int decompress_page(Column *column, Reader *r, const Page *page, int64_t skip, int keep, Reader *body) {
    const uint8_t *at = r->at + skip;
    int64_t stored = page->stored_bytes - skip, raw = page->raw_bytes - skip;
    uint8_t *to = keep ? column->text + column->text_used : column->free;
    int64_t capacity = (keep ? column->text_bytes - column->text_used : column->free_bytes) - SLACK;
    if (skip < 0 || stored < 0 || raw < 0) return DECLINED;
    if (!column->snappy || !page->compressed) {
        *body = (Reader){at, at + stored, 0};
        if (stored != raw || (keep && raw > capacity)) return DECLINED;
        if (!keep) return 0;
        memcpy(to, at, raw);
    } else if (raw > capacity || decompress_snappy(at, stored, to, raw)) {
        return DECLINED;
    }
    *body = (Reader){to, to + raw, 0};
    if (keep) column->text_used += raw;
    return 0;
}

/* Writes the offset of each value of a kept page; the value's 4-byte length precedes it there. */
static int find_text(const Column *column, Reader *body, int64_t count, const uint32_t *targets, uint32_t *out) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t bytes;
        if (body->end - body->at < (int64_t)sizeof bytes) return DECLINED;
        memcpy(&bytes, body->at, sizeof bytes);
        out[targets == NULL ? i : targets[i]] = (uint32_t)(body->at - column->text);
        body->at += sizeof bytes;
        if (bytes > (uint64_t)(body->end - body->at)) return DECLINED;
        body->at += bytes;
    }
    return 0;
}

/* Checks and skips the definition levels of a v1 page: their length, then levels that must all be 1. */
static int skip_levels(Reader *body, int64_t count) {
    uint32_t bytes;
    if (body->end - body->at < 4) return DECLINED;
    memcpy(&bytes, body->at, 4);
    body->at += 4;
    if (bytes > (uint64_t)(body->end - body->at)) return DECLINED;
    Reader levels = {body->at, body->at + bytes, 0};
    body->at += bytes;
    return check_levels(&levels, count);
}

static int read_dictionary(Column *column, Reader *r, const Page *page) {
    Reader body;
    if (column->dictionary != NULL || column->done || page->values < 0) return DECLINED;
    if (page->encoding != PLAIN && page->encoding != PLAIN_DICTIONARY) return DECLINED;
    if (decompress_page(column, r, page, 0, column->text != NULL, &body)) return DECLINED;
    /* for text, width is 4: the bytes of the length before each value */
    if (page->values > (body.end - body.at) / column->width) return DECLINED;
    int64_t bytes = page->values * column->bytes, kept = (bytes + SLACK - 1) / SLACK * SLACK;
    if (kept > column->free_bytes) return DECLINED;
    if (column->text != NULL) {
        if (find_text(column, &body, page->values, NULL, (uint32_t *)column->free)) return DECLINED;
    } else if (pack(body.at, column->width, page->values, column->bytes, column->base, NULL, column->free)) {
        return DECLINED;
    }
    column->dictionary = column->free;
    column->entries = (uint64_t)page->values;
    column->free += kept;
    column->free_bytes -= kept;
    return 0;
}

static int read_values(Column *column, Reader *r, const Page *page) {
    Reader body;
    int v2 = page->type == DATA_PAGE_V2;
    if (page->values < 0 || page->values > column->rows - column->done) return DECLINED;
    if (!v2 && (page->rep_levels < 0 || (column->optional ? page->levels != RLE : page->levels < 0))) return DECLINED;
    if (v2 && (page->nulls || page->rep_bytes || page->rows != page->values)) return DECLINED;
    if (v2 && (page->def_bytes < 0 || page->def_bytes > page->stored_bytes)) return DECLINED;
    if (v2 && column->optional) {
        Reader levels = {r->at, r->at + page->def_bytes, 0};
        if (check_levels(&levels, page->values)) return DECLINED;
    }
    int keep = column->text != NULL && page->encoding == PLAIN;
    if (decompress_page(column, r, page, v2 ? page->def_bytes : 0, keep, &body)) return DECLINED;
    if (!v2 && column->optional && skip_levels(&body, page->values)) return DECLINED;
    const uint32_t *targets = column->targets + column->done;
    int failed;
    if (page->encoding == PLAIN) {
        if (page->values > (body.end - body.at) / column->width) return DECLINED;
        if (keep) failed = find_text(column, &body, page->values, targets, (uint32_t *)column->out);
        else failed = pack(body.at, column->width, page->values, column->bytes, column->base, targets, column->out);
    } else if (page->encoding == RLE_DICTIONARY || page->encoding == PLAIN_DICTIONARY) {
        if (page->values == 0) return 0;
        if (body.at >= body.end || column->dictionary == NULL) return DECLINED;
        int width = *body.at++;
        if (width > 32) return DECLINED;
        failed = look_up(&body, width, page->values, column->dictionary, column->entries, column->bytes, targets,
                         column->out);
    } else {
        return DECLINED;
    }
    column->done += page->values;
    return failed;
}

static int decode_pages(Column *column, const uint8_t *chunk, int64_t chunk_bytes) {
    Reader r = {chunk, chunk + chunk_bytes, 0};
    int failed = 0;
    while (!failed && column->done < column->rows) {
        Page page = read_page(&r);
        if (r.bad || page.has_crc) failed = 1;
        else if (page.type == DICTIONARY_PAGE) failed = read_dictionary(column, &r, &page);
        else if (page.type == DATA_PAGE || page.type == DATA_PAGE_V2) failed = read_values(column, &r, &page);
        else failed = page.type != INDEX_PAGE;
        if (!failed) r.at += page.stored_bytes;
    }
    return failed;
}

/* A job of windrow_decode_packed: the address of a chunk's pages, its properties from the footer, the packed bytes of a
 * value and the base to subtract if they are fewer than its width, the index of its first row in `targets`, its
 * output address and, as the result, whether it was decoded. */
typedef struct {
    int64_t address, stored_bytes, snappy, optional, width, rows, bytes, base, first, out, decoded;
} stored_chunk;

/* Decodes several chunks of fixed-width values.
 *
 * Value i of a chunk is packed and written to row targets[first + i] of its `out`. `scratch` holds the dictionary and
 * one decompressed page. A chunk is declined if a value needs more than its packed bytes, or `scratch` is too small.
 * The `out` of a declined chunk can be partially written.
 */
EXPORT void windrow_decode_packed(int64_t count, stored_chunk *chunks, const uint32_t *targets, uint8_t *scratch,
                                  int64_t scratch_bytes) {
    for (stored_chunk *chunk = chunks; chunk < chunks + count; chunk++) {
        Column column = {.width = chunk->width, .bytes = chunk->bytes, .base = (uint64_t)chunk->base,
                         .rows = chunk->rows, .snappy = (int)chunk->snappy, .optional = (int)chunk->optional,
                         .targets = targets + chunk->first, .out = (uint8_t *)(intptr_t)chunk->out,
                         .free = scratch, .free_bytes = scratch_bytes};
        const int64_t bytes = column.bytes;
        chunk->decoded = (chunk->width == 4 || chunk->width == 8) && bytes <= chunk->width &&
                         (bytes == 0 || bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8) &&
                         !decode_pages(&column, (const uint8_t *)(intptr_t)chunk->address, chunk->stored_bytes);
    }
}

/* Locates the text values of a chunk.
 *
 * Pages that contain text are decompressed to `text` from offset `used` on; at[targets[i]] receives the offset of
 * value i's length, which the value follows. Returns the bytes of `text` used then, of which SLACK bytes stay
 * free; -1 if the chunk is declined.
 */
EXPORT int64_t windrow_find_text(const uint8_t *chunk, int64_t chunk_bytes, int64_t snappy, int64_t optional,
                                 int64_t rows, const uint32_t *targets, uint32_t *at, uint8_t *scratch,
                                 int64_t scratch_bytes, uint8_t *text, int64_t used, int64_t text_bytes) {
    Column column = {.width = sizeof *at, .bytes = sizeof *at, .rows = rows, .snappy = (int)snappy,
                     .optional = (int)optional, .targets = targets, .out = (uint8_t *)at,
                     .free = scratch, .free_bytes = scratch_bytes,
                     .text = text, .text_used = used, .text_bytes = text_bytes};
    if (text_bytes > UINT32_MAX) return DECLINED;
    return decode_pages(&column, chunk, chunk_bytes) ? DECLINED : column.text_used;
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
