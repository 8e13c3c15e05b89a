/* Finds the pages of a column chunk by their headers, and counts the rows of nested pages; page_index.py calls it. */
#include <stdint.h>

#include "_page_headers.h"
#include "_runs.h"

/* A page, from its header on: fields that the header lacks are -1. */
typedef struct {
    int64_t start, header_bytes, stored_bytes, raw_bytes, type, values, rows, encoding, levels_encoding;
} found_page;

/* Finds up to `capacity` pages in bytes that begin with a header. Only headers are read, so the content of the last page
 * can be missing. Returns the number of pages found; the next header is behind the last of them. It is not in these
 * bytes, is not complete, or is corrupt, if fewer than `capacity` pages are found. */
EXPORT int64_t windrow_find_pages(const uint8_t *bytes, int64_t size, found_page *pages, int64_t capacity) {
    Reader r = {bytes, bytes + size, 0};
    int64_t count = 0;
    while (count < capacity && r.at < r.end) {
        const uint8_t *start = r.at;
        const Page page = read_header(&r);
        const int has_values = page.type == DATA_PAGE || page.type == DATA_PAGE_V2;
        if (r.bad || (has_values && page.values < 0)) break;
        pages[count++] = (found_page){start - bytes, r.at - start, page.stored_bytes, page.raw_bytes, page.type,
                                      page.values, page.rows, page.encoding, page.rep_levels};
        if (page.stored_bytes > r.end - r.at) break;
        r.at += page.stored_bytes;
    }
    return count;
}

/* What the headers of adjacent pages state together. */
typedef struct {
    int64_t values, rows, raw_bytes, needs_dictionary;
} all_pages;

/* Reads the headers of complete pages. `rows` is -1 if only the levels of some page tell them. DECLINED if the bytes do
 * not end with a page, or if one has no values. */
EXPORT int64_t windrow_sum_pages(const uint8_t *bytes, int64_t size, all_pages *found) {
    Reader r = {bytes, bytes + size, 0};
    *found = (all_pages){0, 0, 0, 0};
    while (r.at < r.end) {
        const uint8_t *start = r.at;
        const Page page = read_page(&r);
        if (r.bad) return DECLINED;
        if (page.type == DATA_PAGE || page.type == DATA_PAGE_V2) {
            if (page.values < 0) return DECLINED;
            const int64_t rows = page.type == DATA_PAGE_V2 ? page.rows : -1;
            found->values += page.values;
            found->rows = rows < 0 || found->rows < 0 ? -1 : found->rows + rows;
            if (page.encoding == 2 || page.encoding == 8) found->needs_dictionary = 1;
        } else if (page.type != INDEX_PAGE) {
            return DECLINED;
        }
        found->raw_bytes += r.at - start + page.raw_bytes;
        r.at += page.stored_bytes;
    }
    return 0;
}

/* Counts the rows that begin in a decompressed page of the first version with `count` levels, of which the repetition
 * levels come first and have `width` bits. Returns twice their number, and 1 more if the page begins with a row;
 * DECLINED if the levels cannot be read. */
EXPORT int64_t windrow_count_rows(const uint8_t *bytes, int64_t size, int64_t width, int64_t count) {
    Reader body = {bytes, bytes + size, 0}, levels, *r = &levels;
    int64_t rows = 0, begins = 0;
    if (width < 1 || width > 16 || find_levels(&body, &levels)) return DECLINED;
#define ONE(at, v)                   \
    if (!(v)) {                      \
        rows++;                      \
        if (!(at)) begins = 1;       \
    }
#define RUN(at, many, v)             \
    if (!(v)) {                      \
        rows += (many);              \
        if (!(at)) begins = 1;       \
    }
    EACH_RUN((int)width, count, ONE, RUN);
#undef ONE
#undef RUN
    return 2 * rows + begins;
}
