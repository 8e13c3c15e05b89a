/* Validates Parquet footers; windrow/io/parquet/footer_validation.py calls it through ctypes.
 *
 * Arrow's column chunk accessors abort the process on some footers that no writer produces. These are
 * rejected here first. Every read is bounds-checked.
 */
#include <stdint.h>

#include "_reader.h"

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
        if (levels[depth].left-- <= 0) {
            report_problem(footer, FOOTER_BROKEN);
            return;
        }
        /* the root's repetition type is ignored */
        leaf.definitions = levels[depth].definitions + (i > 0 && (repetition == 1 || repetition == 2));
        leaf.repetitions = levels[depth].repetitions + (i > 0 && repetition == 2);
        if (children > 0) {
            if (++depth > DEPTH) {
                report_problem(footer, FOOTER_BROKEN);
                return;
            }
            levels[depth].left = children;
            levels[depth].definitions = leaf.definitions;
            levels[depth].repetitions = leaf.repetitions;
        } else if (leaf.type >= 0) {
            if (footer->count == footer->capacity) {
                report_problem(footer, FOOTER_BROKEN);
                return;
            }
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
        if (length != (uint64_t)footer->count) {
            report_problem(footer, COLUMNS_DIFFER);
            return;
        }
        for (uint64_t i = 0; i < length && !r->bad && !footer->problem; i++, footer->chunk++) {
            const Leaf *leaf = &footer->leaves[i];
            int inner = 0, described = 0;
            if (leaf->type > TYPE_FIXED || leaf->type_bytes < 0) {
                report_problem(footer, FOOTER_BROKEN);
                return;
            }
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
