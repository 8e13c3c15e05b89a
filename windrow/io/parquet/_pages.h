/* Reads the pages of a column chunk: their dictionaries and values. */
#ifndef WINDROW_PAGES_H
#define WINDROW_PAGES_H

#include <stdint.h>
#include <string.h>

#include "_codecs.h"
#include "_encodings.h"
#include "_page_headers.h"
#include "_reader.h"
#include "_values.h"

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
    /* rows to decode, and rows of its pages before and behind these */
    int64_t rows, before, behind;
    int codec, optional;
    const system_codecs *system;
    const uint32_t *targets;
    uint8_t *out;
    /* (all rows of the column,) 1 for valid and 0 for null, set when the first null is found; NULL: nulls are declined */
    uint8_t *valid;
    int64_t valid_rows, nulls;
    /* (before + rows,) the targets of a page's values, then of its nulls from the end */
    uint32_t *compact, *compact_end;
    /* (before + rows,) the targets of a page that begins before the rows; NULL: such pages are declined */
    uint32_t *ahead;
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
        const Sink sink = {DECIMAL_BYTES, DECIMAL_BYTES, 0, NULL, column->free, 0};
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

/* Decodes the first `count` values of a page, which go to `targets`; `is_cut` if the page has more values. */
static int decode_values(Column *column, int64_t encoding, Reader *body, int64_t count, const uint32_t *targets,
                         int is_cut) {
    const Sink sink = {column->width, column->bytes, column->base, targets, column->out, is_cut};
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

typedef struct {
    const uint8_t *at;
    int64_t bytes;
} Bytes;

/* Reads the pages of a chunk, or some of them and those that lie apart `ahead`: the dictionary that they need.
 * `read_values` handles pages with values, and counts them in column->done. */
static int decode_pages(Column *column, Bytes ahead, Bytes pages,
                        int (*read_values)(Column *, Reader *, const Page *)) {
    Reader r = {ahead.at, ahead.at + ahead.bytes, 0};
    int failed = 0, is_last = 0;
    /* rows behind are counted, so that pages that hold other rows than stated are declined */
    while (!failed && (column->before || column->behind || column->done < column->rows)) {
        if (!is_last && r.at == r.end) {
            r = (Reader){pages.at, pages.at + pages.bytes, 0};
            is_last = 1;
        }
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
