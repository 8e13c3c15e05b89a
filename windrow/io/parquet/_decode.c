/* Decodes simple Parquet column chunks, and validates footers; chunk_decoder.py and footer_validation.py in
 * windrow/io/parquet call it through ctypes.
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

#define EXPORT __attribute__((visibility("default")))
#define DECLINED (-1)
/* Copies move 8 and 16 bytes at a time, and can write up to this many bytes past the end. */
#define SLACK 64

/* --- page headers ---------------------------------------------------------------------- */

typedef struct {
    const uint8_t *at, *end;
    int bad;
} Reader;

typedef struct {
    int64_t type, raw_bytes, stored_bytes, values, encoding, nulls, rows, def_bytes, rep_bytes, levels, rep_levels;
    int has_crc, compressed;
} Page;

static uint64_t read_varint(Reader *r) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (r->at >= r->end) break;
        uint8_t byte = *r->at++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return value;
    }
    r->bad = 1;
    return 0;
}

static int64_t read_int(Reader *r) {
    uint64_t value = read_varint(r);
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

static void skip_bytes(Reader *r, uint64_t count) {
    if (count > (uint64_t)(r->end - r->at)) r->bad = 1;
    else r->at += count;
}

enum { STOP, TRUE_, FALSE_, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT };

static void skip_field(Reader *r, int type, int depth);
static void skip_list(Reader *r, int depth);

static int next_field(Reader *r, int *id, int *type) {
    if (r->bad || r->at >= r->end) {
        r->bad = 1;
        return 0;
    }
    uint8_t head = *r->at++;
    *type = head & 15;
    if (*type == STOP) return 0;
    *id = (int16_t)(head >> 4 ? *id + (head >> 4) : read_int(r));
    return !r->bad;
}

static void skip_struct(Reader *r, int depth) {
    int id = 0, type;
    while (next_field(r, &id, &type)) skip_field(r, type, depth);
}

static void skip_field(Reader *r, int type, int depth) {
    if (depth > 8) {
        r->bad = 1;
        return;
    }
    switch (type) {
    case TRUE_: case FALSE_: break;
    case BYTE: skip_bytes(r, 1); break;
    case I16: case I32: case I64: read_varint(r); break;
    case DOUBLE: skip_bytes(r, 8); break;
    case BINARY: skip_bytes(r, read_varint(r)); break;
    case STRUCT: skip_struct(r, depth + 1); break;
    case LIST: case SET: skip_list(r, depth + 1); break;
    default: r->bad = 1; /* Parquet uses no Thrift maps */
    }
}

/* Reads a list header: its length and element type. Callers that know the element type ignore the stated one, as
 * Thrift does. */
static uint64_t read_list(Reader *r, int *type) {
    if (r->at >= r->end) {
        r->bad = 1;
        return 0;
    }
    uint8_t head = *r->at++;
    *type = head & 15;
    uint64_t length = head >> 4 == 15 ? read_varint(r) : head >> 4;
    if (length > (uint64_t)(r->end - r->at)) r->bad = 1;
    return r->bad ? 0 : length;
}

static void skip_list(Reader *r, int depth) {
    int type;
    uint64_t length = read_list(r, &type);
    for (uint64_t i = 0; i < length && !r->bad; i++) {
        /* in a list each boolean takes one byte */
        if (type == TRUE_ || type == FALSE_) skip_bytes(r, 1);
        else skip_field(r, type, depth);
    }
}

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

/* --- Snappy ---------------------------------------------------------------------------- */

static inline void copy4(uint8_t *to, const uint8_t *from) { memcpy(to, from, 4); }
static inline void copy8(uint8_t *to, const uint8_t *from) { memcpy(to, from, 8); }
static inline void copy16(uint8_t *to, const uint8_t *from) { memcpy(to, from, 16); }

/* Decompresses Snappy. `out` has SLACK bytes more than raw_bytes. Returns 0 if the output is exactly raw_bytes. */
static int decompress_snappy(const uint8_t *in, int64_t stored_bytes, uint8_t *out, int64_t raw_bytes) {
    Reader r = {in, in + stored_bytes, 0};
    if (read_varint(&r) != (uint64_t)raw_bytes || r.bad) return DECLINED;
    const uint8_t *at = r.at, *end = r.end;
    uint8_t *to = out, *stop = out + raw_bytes;
    while (at < end) {
        uint8_t tag = *at++;
        int64_t length, offset;
        if ((tag & 3) == 0) {
            length = (tag >> 2) + 1;
            if (length <= 16 && end - at >= 16 && stop - to >= length) {
                copy16(to, at);
                at += length;
                to += length;
                continue;
            }
            if (length > 60) {
                int more = (int)length - 60;
                if (end - at < more) return DECLINED;
                length = 0;
                for (int i = 0; i < more; i++) length |= (int64_t)at[i] << (8 * i);
                length++;
                at += more;
            }
            if (length > end - at || length > stop - to) return DECLINED;
            memcpy(to, at, length);
            at += length;
            to += length;
            continue;
        }
        if ((tag & 3) == 1) {
            if (end - at < 1) return DECLINED;
            length = ((tag >> 2) & 7) + 4;
            offset = ((int64_t)(tag >> 5) << 8) | at[0];
            at += 1;
        } else {
            int wide = (tag & 3) == 3 ? 4 : 2;
            if (end - at < wide) return DECLINED;
            length = (tag >> 2) + 1;
            offset = at[0] | (int64_t)at[1] << 8;
            if (wide == 4) offset |= (int64_t)at[2] << 16 | (int64_t)at[3] << 24;
            at += wide;
        }
        if (offset == 0 || offset > to - out || length > stop - to) return DECLINED;
        const uint8_t *from = to - offset;
        if (length <= 4 && offset >= 4) {
            /* a wider load would span two stores that are still in flight, and stall (store forwarding fails) */
            copy4(to, from);
        } else if (offset >= 16 && length <= 16) {
            copy16(to, from);
        } else if (offset >= 8) {
            for (int64_t i = 0; i < length; i += 8) copy8(to + i, from + i);
        } else {
            for (int64_t i = 0; i < length; i++) to[i] = from[i];
        }
        to += length;
    }
    return to == stop ? 0 : DECLINED;
}

/* --- values ---------------------------------------------------------------------------- */

static inline uint64_t load8(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

/* Loads a bit-packed value of at most 32 bits near the end, where fewer than 8 bytes can remain. */
static inline uint64_t load_tail(const uint8_t *from, int64_t bytes, int64_t bit, uint64_t mask) {
    uint8_t word[16] = {0};
    int64_t at = bit >> 3, left = bytes - at;
    if (left > 0) memcpy(word, from + at, left > 8 ? 8 : left);
    return (load8(word) >> (bit & 7)) & mask;
}

/* Iterates over the runs of the RLE/bit-packing hybrid; DO_ONE handles a bit-packed value, DO_RUN a repeated one. */
#define EACH_RUN(width, count, DO_ONE, DO_RUN)                                       \
    do {                                                                             \
        const uint64_t mask = ((uint64_t)1 << (width)) - 1;                          \
        int64_t i = 0;                                                               \
        while (i < (count)) {                                                        \
            uint64_t head = read_varint(r);                                          \
            if (r->bad || head >> 33) return DECLINED;                               \
            int64_t many = head & 1 ? (int64_t)(head >> 1) * 8 : (int64_t)(head >> 1); \
            if (many == 0) return DECLINED;                                          \
            if (head & 1) {                                                          \
                int64_t bytes = (int64_t)(head >> 1) * (width), left = r->end - r->at; \
                /* a writer can truncate the padding of the last group, but no more */ \
                if (bytes > left && bytes - left >= (width)) return DECLINED;        \
                if (bytes > left) bytes = left;                                      \
                if (many > (count) - i) many = (count) - i;                          \
                if ((bytes * 8) < many * (width)) return DECLINED;                   \
                /* at width 0 there can be no bytes to load */                       \
                int64_t fast = (width) ? (bytes - 8) * 8 / (width) : 0;              \
                if (fast > many) fast = many;                                        \
                const uint8_t *from = r->at;                                         \
                int64_t j = 0;                                                       \
                uint64_t bit = 0;                                                    \
                for (; j < fast; j++, bit += (width)) {                              \
                    uint64_t v = (load8(from + (bit >> 3)) >> (bit & 7)) & mask;     \
                    DO_ONE(i + j, v)                                                 \
                }                                                                    \
                for (; j < many; j++, bit += (width)) {                              \
                    uint64_t v = load_tail(from, bytes, (int64_t)bit, mask);         \
                    DO_ONE(i + j, v)                                                 \
                }                                                                    \
                r->at += bytes;                                                      \
            } else {                                                                 \
                int bytes = ((width) + 7) / 8;                                       \
                uint64_t v = 0;                                                      \
                if (r->end - r->at < bytes) return DECLINED;                         \
                memcpy(&v, r->at, bytes);                                            \
                r->at += bytes;                                                      \
                if (many > (count) - i) many = (count) - i;                          \
                DO_RUN(i, many, v)                                                   \
            }                                                                        \
            i += many;                                                               \
        }                                                                            \
    } while (0)

/* Checks that all definition levels are 1: no value is null. */
static int check_levels(Reader *r, int64_t count) {
#define ONE(at, v) if (v != 1) return DECLINED;
#define RUN(at, many, v) if (v != 1) return DECLINED;
    EACH_RUN(1, count, ONE, RUN);
#undef ONE
#undef RUN
    return 0;
}

#define DECLINE_BEYOND(v) if (v >= entries) return DECLINED;
#define CHECK_ONE(at, v) DECLINE_BEYOND(v)
#define CHECK_RUN(at, many, v) DECLINE_BEYOND(v)
#define SCATTER_ONE(at, v) DECLINE_BEYOND(v) out[targets[at]] = dictionary[v];
#define SCATTER_RUN(at, many, v) \
    DECLINE_BEYOND(v)            \
    for (int64_t j = 0; j < many; j++) out[targets[(at) + j]] = dictionary[v];

/* Gathers dictionary entries and scatters them: value i goes to index targets[i]. */
#define LOOK_UP(NAME, WORD)                                                                        \
    static int look_up_##NAME(Reader *r, int width, int64_t count, const WORD *restrict dictionary, \
                              uint64_t entries, const uint32_t *restrict targets, WORD *restrict out) { \
        EACH_RUN(width, count, SCATTER_ONE, SCATTER_RUN);                                          \
        return 0;                                                                                  \
    }

LOOK_UP(1, uint8_t)
LOOK_UP(2, uint16_t)
LOOK_UP(4, uint32_t)
LOOK_UP(8, uint64_t)

/* For entries of 0 bytes, where all values are equal to the base: only validates the indices. */
static int check_indices(Reader *r, int width, int64_t count, uint64_t entries) {
    EACH_RUN(width, count, CHECK_ONE, CHECK_RUN);
    return 0;
}

static int look_up(Reader *r, int width, int64_t count, const uint8_t *dictionary, uint64_t entries, int64_t bytes,
                   const uint32_t *targets, uint8_t *out) {
    switch (bytes) {
    case 0: return check_indices(r, width, count, entries);
    case 1: return look_up_1(r, width, count, dictionary, entries, targets, out);
    case 2: return look_up_2(r, width, count, (const uint16_t *)dictionary, entries, targets, (uint16_t *)out);
    case 4: return look_up_4(r, width, count, (const uint32_t *)dictionary, entries, targets, (uint32_t *)out);
    default: return look_up_8(r, width, count, (const uint64_t *)dictionary, entries, targets, (uint64_t *)out);
    }
}

/* Stored values can be unaligned, and alias other types. */
#define UNALIGNED __attribute__((aligned(1), may_alias))
typedef uint16_t UNALIGNED unaligned2;
typedef uint32_t UNALIGNED unaligned4;
typedef uint64_t UNALIGNED unaligned8;

/* Values packed per iteration, through a local buffer since `out` can alias `words`. */
enum { BATCH = 64 };

#define PACK_SOME(FROM, TO, COUNT)                                  \
    do {                                                            \
        TO packed[BATCH];                                           \
        for (int64_t j = 0; j < (COUNT); j++) {                     \
            FROM delta = (FROM)(from[i + j] - minimum);             \
            all_bits |= delta;                                      \
            packed[j] = (TO)delta;                                  \
        }                                                           \
        if (targets == NULL)                                        \
            memcpy(to + i, packed, (COUNT) * sizeof(TO));           \
        else                                                        \
            for (int64_t j = 0; j < (COUNT); j++) to[targets[i + j]] = packed[j]; \
    } while (0)

#define PACK(FROM, TO)                                              \
    do {                                                            \
        const FROM *from = (const FROM *)words, minimum = (FROM)base; \
        TO *to = (TO *)out;                                         \
        FROM all_bits = 0;                                          \
        int64_t i = 0;                                              \
        for (; i + BATCH <= count; i += BATCH) PACK_SOME(FROM, TO, BATCH); \
        PACK_SOME(FROM, TO, count - i);                             \
        return all_bits > (TO)~(TO)0 ? DECLINED : 0;                \
    } while (0)

#define SCATTER(WORD)                                               \
    do {                                                            \
        WORD *to = (WORD *)out;                                     \
        for (int64_t i = 0; i < count; i++) to[targets[i]] = ((const WORD *)words)[i]; \
        return 0;                                                   \
    } while (0)

#define SAME(FROM)                                                  \
    do {                                                            \
        for (int64_t i = 0; i < count; i++)                         \
            if (((const FROM *)words)[i] != (FROM)base) return DECLINED; \
        return 0;                                                   \
    } while (0)

/* Frame-of-reference packing: writes each value minus `base` in `bytes` bytes; declines if one does not fit. Value i
 * goes to index targets[i] or, without targets, to index i. */
static int pack(const uint8_t *words, int64_t width, int64_t count, int64_t bytes, uint64_t base,
                const uint32_t *targets, uint8_t *out) {
    switch (width * 8 + bytes) {
    case 8 * 8 + 4: PACK(unaligned8, unaligned4);
    case 8 * 8 + 2: PACK(unaligned8, unaligned2);
    case 8 * 8 + 1: PACK(unaligned8, uint8_t);
    case 8 * 8: SAME(unaligned8);
    case 4 * 8 + 2: PACK(unaligned4, unaligned2);
    case 4 * 8 + 1: PACK(unaligned4, uint8_t);
    case 4 * 8: SAME(unaligned4);
    }
    if (targets == NULL) {
        if (out != words) memcpy(out, words, count * width);
        return 0;
    }
    if (width == 8) SCATTER(unaligned8);
    SCATTER(unaligned4);
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

/* --- a footer --------------------------------------------------------------------------- */

/* Arrow's column chunk accessors abort the process on some footers that no writer produces. These are
 * rejected here first. */
enum { FOOTER_FITS, FOOTER_BROKEN, COLUMNS_DIFFER, TYPES_DIFFER, UNKNOWN_CODEC, BAD_STATISTICS, ENCRYPTED };
enum { TYPE_BOOLEAN, TYPE_INT32, TYPE_INT64, TYPE_INT96, TYPE_FLOAT, TYPE_DOUBLE, TYPE_BYTES, TYPE_FIXED };
enum { DEPTH = 64, LAST_CODEC = 7 };

typedef struct {
    int32_t type, type_bytes, definitions, repetitions;
} Leaf;

typedef struct {
    Leaf *leaves;
    int64_t capacity, count;
    int problem;
    /* text bytes of each chunk, row group by row group, where the footer states them */
    int64_t *texts, chunks, chunk;
} Footer;

static int32_t read_i32(Reader *r) {
    uint32_t value = (uint32_t)read_varint(r);
    return (int32_t)(value >> 1) ^ -(int32_t)(value & 1);
}

static void report_problem(Footer *footer, int problem) {
    if (!footer->problem) footer->problem = problem;
}

/* Schema elements are in depth-first order, each with its number of children. */
static void read_schema(Reader *r, Footer *footer) {
    struct { int64_t left; int32_t definitions, repetitions; } levels[DEPTH + 1] = {{1, 0, 0}};
    int depth = 0, type;
    uint64_t length = read_list(r, &type);
    for (uint64_t i = 0; i < length && !r->bad; i++) {
        Leaf leaf = {-1, 0, 0, 0};
        int32_t children = 0, repetition = 0;
        int id = 0;
        while (next_field(r, &id, &type)) {
            if (type == I32 && id == 1) leaf.type = read_i32(r);
            else if (type == I32 && id == 2) leaf.type_bytes = read_i32(r);
            else if (type == I32 && id == 3) repetition = read_i32(r);
            else if (type == I32 && id == 5) children = read_i32(r);
            else skip_field(r, type, 1);
        }
        while (depth > 0 && levels[depth].left == 0) depth--;
        if (levels[depth].left-- <= 0) return report_problem(footer, FOOTER_BROKEN);
        /* the root's repetition type is ignored */
        leaf.definitions = levels[depth].definitions + (i > 0 && (repetition == 1 || repetition == 2));
        leaf.repetitions = levels[depth].repetitions + (i > 0 && repetition == 2);
        if (children > 0) {
            if (++depth > DEPTH) return report_problem(footer, FOOTER_BROKEN);
            levels[depth].left = children;
            levels[depth].definitions = leaf.definitions;
            levels[depth].repetitions = leaf.repetitions;
        } else if (leaf.type >= 0) {
            if (footer->count == footer->capacity) return report_problem(footer, FOOTER_BROKEN);
            footer->leaves[footer->count++] = leaf;
        }
    }
}

/* Statistics: fields 1, 2, 5 and 6 are the encoded minimum and maximum values. */
static void check_statistics(Reader *r, Footer *footer, const Leaf *leaf) {
    static const int widths[] = {1, 4, 8, 12, 4, 8, 0};
    uint64_t width = leaf->type == TYPE_FIXED ? (uint64_t)leaf->type_bytes : (uint64_t)widths[leaf->type];
    int id = 0, type;
    while (next_field(r, &id, &type)) {
        if (type == BINARY && (id == 1 || id == 2 || id == 5 || id == 6)) {
            uint64_t bytes = read_varint(r);
            if (bytes < width) report_problem(footer, BAD_STATISTICS);
            skip_bytes(r, bytes);
        } else {
            skip_field(r, type, 3);
        }
    }
}

/* SizeStatistics: 1 text bytes, 2 and 3 histograms of repetition and definition levels. */
static void check_sizes(Reader *r, Footer *footer, const Leaf *leaf) {
    int id = 0, type, kind;
    while (next_field(r, &id, &type)) {
        if (type == LIST && (id == 2 || id == 3)) {
            uint64_t levels = 1 + (uint64_t)(id == 2 ? leaf->repetitions : leaf->definitions);
            uint64_t length = read_list(r, &kind);
            if (length && length != levels) report_problem(footer, BAD_STATISTICS);
            for (uint64_t i = 0; i < length && !r->bad; i++) read_varint(r);
        } else {
            if (type == I64 && id == 1 && leaf->type != TYPE_BYTES) report_problem(footer, BAD_STATISTICS);
            if (type == I64 && id == 1 && footer->chunk < footer->chunks) footer->texts[footer->chunk] = read_int(r);
            else skip_field(r, type, 3);
        }
    }
}

/* ColumnMetaData: 1 type, 4 codec, 12 statistics, 16 size statistics. */
static void check_chunk(Reader *r, Footer *footer, const Leaf *leaf) {
    int id = 0, type;
    while (next_field(r, &id, &type)) {
        if (type == I32 && id == 1) {
            if (read_i32(r) != leaf->type) report_problem(footer, TYPES_DIFFER);
        } else if (type == I32 && id == 4) {
            if ((uint32_t)read_i32(r) > LAST_CODEC) report_problem(footer, UNKNOWN_CODEC);
        } else if (type == STRUCT && id == 12) {
            check_statistics(r, footer, leaf);
        } else if (type == STRUCT && id == 16) {
            check_sizes(r, footer, leaf);
        } else {
            skip_field(r, type, 2);
        }
    }
}

/* RowGroup: 1 columns. ColumnChunk: 3 metadata, 8 and 9 encryption. */
static void check_group(Reader *r, Footer *footer) {
    int id = 0, type, kind;
    while (next_field(r, &id, &type)) {
        if (type != LIST || id != 1) {
            skip_field(r, type, 1);
            continue;
        }
        uint64_t length = read_list(r, &kind);
        if (length != (uint64_t)footer->count) return report_problem(footer, COLUMNS_DIFFER);
        for (uint64_t i = 0; i < length && !r->bad && !footer->problem; i++, footer->chunk++) {
            const Leaf *leaf = &footer->leaves[i];
            int inner = 0, described = 0;
            if (leaf->type > TYPE_FIXED || leaf->type_bytes < 0) return report_problem(footer, FOOTER_BROKEN);
            while (next_field(r, &inner, &type)) {
                if (type == STRUCT && inner == 3) {
                    check_chunk(r, footer, leaf);
                    described = 1;
                } else {
                    if (inner == 8 || inner == 9) report_problem(footer, ENCRYPTED);
                    skip_field(r, type, 1);
                }
            }
            if (!described) report_problem(footer, FOOTER_BROKEN);
        }
    }
}

/* Validates a footer. FileMetaData: 2 schema, 4 row groups.
 *
 * `leaves` holds up to `capacity` columns. `texts`, of `chunks` elements, receives the text bytes of the chunks
 * that state them. Returns FOOTER_FITS (0) or the problem. */
EXPORT int64_t windrow_check_footer(const uint8_t *bytes, int64_t size, uint8_t *leaves, int64_t capacity,
                                    int64_t *texts, int64_t chunks) {
    Footer footer = {.leaves = (Leaf *)leaves, .capacity = capacity, .texts = texts, .chunks = chunks};
    Reader r = {bytes, bytes + size, 0};
    int id = 0, type, kind, schemas = 0;
    while (!footer.problem && next_field(&r, &id, &type)) {
        if (type == LIST && id == 2) {
            if (schemas++) report_problem(&footer, FOOTER_BROKEN);
            else read_schema(&r, &footer);
        } else if (type == LIST && id == 4) {
            uint64_t length = read_list(&r, &kind);
            for (uint64_t i = 0; i < length && !r.bad && !footer.problem; i++) check_group(&r, &footer);
            /* a schema after the row groups would not be the one that they were checked against */
            schemas = 1;
        } else {
            skip_field(&r, type, 0);
        }
    }
    return footer.problem ? footer.problem : r.bad ? FOOTER_BROKEN : FOOTER_FITS;
}
