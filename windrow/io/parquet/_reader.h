/* Reads untrusted bytes within their bounds: varints, and Thrift's compact protocol. */
#ifndef WINDROW_READER_H
#define WINDROW_READER_H

#include <stdint.h>

#include "../../core/_compiler.h"

/* The code of what this decoder does not read. */
#define DECLINED (-1)

typedef struct {
    const uint8_t *at, *end;
    int bad;
} Reader;

static inline uint64_t read_varint(Reader *r) {
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

static inline int64_t read_int(Reader *r) {
    uint64_t value = read_varint(r);
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

static inline void skip_bytes(Reader *r, uint64_t count) {
    if (count > (uint64_t)(r->end - r->at)) r->bad = 1;
    else r->at += count;
}

enum { STOP, TRUE_, FALSE_, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT };

static inline void skip_field(Reader *r, int type, int depth);
static inline void skip_list(Reader *r, int depth);

static inline int next_field(Reader *r, int *id, int *type) {
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

static inline void skip_struct(Reader *r, int depth) {
    int id = 0, type;
    while (next_field(r, &id, &type)) skip_field(r, type, depth);
}

static inline void skip_field(Reader *r, int type, int depth) {
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
static inline uint64_t read_list(Reader *r, int *type) {
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

static inline void skip_list(Reader *r, int depth) {
    int type;
    uint64_t length = read_list(r, &type);
    for (uint64_t i = 0; i < length && !r->bad; i++) {
        /* in a list each boolean takes one byte */
        if (type == TRUE_ || type == FALSE_) skip_bytes(r, 1);
        else skip_field(r, type, depth);
    }
}

#endif
