/* Decompresses Snappy from untrusted bytes. */
#ifndef WINDROW_SNAPPY_H
#define WINDROW_SNAPPY_H

#include <stdint.h>
#include <string.h>

#include "_reader.h"

/* Copies move 8 and 16 bytes at a time, and can write up to this many bytes past the end. */
#define SLACK 64

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

#endif
