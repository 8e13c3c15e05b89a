/* Reads the headers of pages, and finds the levels before their values. */
#ifndef WINDROW_PAGE_HEADERS_H
#define WINDROW_PAGE_HEADERS_H

#include <stdint.h>
#include <string.h>

#include "_reader.h"

enum { DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 };

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

/* Reads the header of a page, whose content need not be at hand. */
static inline Page read_header(Reader *r) {
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
    if (page.raw_bytes < 0 || page.stored_bytes < 0) r->bad = 1;
    /* all of them have 32 bits, so sums of them do not overflow */
    if (page.raw_bytes > INT32_MAX || page.stored_bytes > INT32_MAX || page.values > INT32_MAX || page.rows > INT32_MAX)
        r->bad = 1;
    return page;
}

static inline Page read_page(Reader *r) {
    Page page = read_header(r);
    if (page.stored_bytes > r->end - r->at) r->bad = 1;
    return page;
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

#endif
