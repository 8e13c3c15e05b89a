/* Reads the pages of a column chunk: their headers, dictionaries and values. */
#ifndef WINDROW_PAGES_H
#define WINDROW_PAGES_H

#include <stdint.h>
#include <string.h>

#include "_codecs.h"
#include "_encodings.h"
#include "_reader.h"
#include "_values.h"

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
enum { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, DELTA = 5, RLE_DICTIONARY = 8, SPLIT = 9 };
/* What chunks hold: numbers as they are in memory, lengths before text, booleans, big-endian integers. */
enum { NUMBERS, TEXT, BOOLEANS, DECIMALS };
/* bytes of a decimal */
enum { DECIMAL_BYTES = 16 };

typedef struct {
    int kind;
    /* bytes of a value as stored and as packed, and the base that packing subtracts */
    int64_t width, bytes;
    uint64_t base;
    int64_t rows;
    int codec, optional;
    const system_codecs *system;
    const uint32_t *targets;
    uint8_t *out;
    /* (all rows of the column,) 1 for valid and 0 for null, set when the first null is found; NULL: nulls are declined */
    uint8_t *valid;
    int64_t valid_rows, nulls;
    /* (rows,) the targets of a page's values, then of its nulls from the end */
    uint32_t *compact;
    /* the caller's scratch memory: the dictionary, followed by free space for pages */
    uint8_t *dictionary, *free;
    int64_t free_bytes;
    /* for text: the memory that keeps decompressed pages; decoded values are offsets into it */
    uint8_t *text;
    int64_t text_used, text_bytes;
    uint64_t entries;
    int64_t done;
} Column;

static int is_in_text(const Column *column, const uint8_t *at) {
    return at >= column->text && at < column->text + column->text_bytes;
}

/* Decompresses a page after its first `skip` bytes, which are uncompressed; `keep` puts it into column->text, if it is
 * not there yet. */
static int decompress_page(Column *column, Reader *r, const Page *page, int64_t skip, int keep, Reader *body) {
    const uint8_t *at = r->at + skip;
    int64_t stored = page->stored_bytes - skip, raw = page->raw_bytes - skip;
    uint8_t *to = keep ? column->text + column->text_used : column->free;
    int64_t capacity = (keep ? column->text_bytes - column->text_used : column->free_bytes) - SLACK;
    if (skip < 0 || stored < 0 || raw < 0) return DECLINED;
    if (column->codec == RAW || !page->compressed) {
        *body = (Reader){at, at + stored, 0};
        if (stored != raw) return DECLINED;
        if (!keep || is_in_text(column, at)) return 0;
        if (raw > capacity) return DECLINED;
        memcpy(to, at, raw);
    } else if (raw > capacity || decompress(column->codec, column->system, at, stored, to, raw)) {
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

/* Finds the levels of a v1 page, which follow their length, and moves behind them. */
static int find_levels(Reader *body, Reader *levels) {
    uint32_t bytes;
    if (body->end - body->at < 4) return DECLINED;
    memcpy(&bytes, body->at, 4);
    body->at += 4;
    if (bytes > (uint64_t)(body->end - body->at)) return DECLINED;
    *levels = (Reader){body->at, body->at + bytes, 0};
    body->at += bytes;
    return 0;
}

static int read_dictionary(Column *column, Reader *r, const Page *page) {
    Reader body;
    if (column->dictionary != NULL || column->done || page->values < 0) return DECLINED;
    if (page->encoding != PLAIN && page->encoding != PLAIN_DICTIONARY) return DECLINED;
    if (column->kind == BOOLEANS) return DECLINED;
    if (decompress_page(column, r, page, 0, column->text != NULL, &body)) return DECLINED;
    /* for text, width is 4: the bytes of the length before each value */
    if (page->values > (body.end - body.at) / column->width) return DECLINED;
    int64_t bytes = page->values * column->bytes, kept = (bytes + SLACK - 1) / SLACK * SLACK;
    if (kept > column->free_bytes) return DECLINED;
    int failed;
    if (column->kind == TEXT) {
        failed = find_text(column, &body, page->values, NULL, (uint32_t *)column->free);
    } else if (column->kind == DECIMALS) {
        const Sink sink = {DECIMAL_BYTES, DECIMAL_BYTES, 0, NULL, column->free};
        failed = decode_big_endian(&body, column->width, page->values, &sink);
    } else {
        failed = pack(body.at, column->width, page->values, column->bytes, column->base, NULL, column->free);
    }
    if (failed) return DECLINED;
    column->dictionary = column->free;
    column->entries = (uint64_t)page->values;
    column->free += kept;
    column->free_bytes -= kept;
    return 0;
}

/* Decodes the values of a page, which go to `targets`. */
static int decode_values(Column *column, int64_t encoding, Reader *body, int64_t count, const uint32_t *targets) {
    const Sink sink = {column->width, column->bytes, column->base, targets, column->out};
    if (encoding == RLE_DICTIONARY || encoding == PLAIN_DICTIONARY) {
        if (count == 0) return 0;
        if (body->at >= body->end || column->dictionary == NULL) return DECLINED;
        int width = *body->at++;
        if (width > 32) return DECLINED;
        return look_up(body, width, count, column->dictionary, column->entries, column->bytes, targets, column->out);
    }
    if (column->kind == BOOLEANS) {
        if (encoding == PLAIN) return decode_bits(body, count, &sink);
        return encoding == RLE ? decode_bit_runs(body, count, &sink) : DECLINED;
    }
    if (encoding == PLAIN) {
        if (column->kind == TEXT) return find_text(column, body, count, targets, (uint32_t *)column->out);
        if (column->kind == DECIMALS) return decode_big_endian(body, column->width, count, &sink);
        if (count > (body->end - body->at) / column->width) return DECLINED;
        return pack(body->at, column->width, count, column->bytes, column->base, targets, column->out);
    }
    if (column->kind != NUMBERS) return DECLINED;
    if (encoding == DELTA) return decode_delta(body, count, &sink);
    return encoding == SPLIT ? decode_split(body, count, &sink) : DECLINED;
}

/* Reads the pages of a chunk; `read_values` handles those with values, and counts them in column->done. */
static int decode_pages(Column *column, const uint8_t *chunk, int64_t chunk_bytes,
                        int (*read_values)(Column *, Reader *, const Page *)) {
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

#endif
