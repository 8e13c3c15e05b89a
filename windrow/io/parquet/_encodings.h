/* Decodes DELTA_BINARY_PACKED, BYTE_STREAM_SPLIT and bit-packed booleans; values are packed as they are decoded. */
#ifndef WINDROW_ENCODINGS_H
#define WINDROW_ENCODINGS_H

#include <stdint.h>
#include <string.h>

#include "_reader.h"
#include "_values.h"

/* What receives decoded values: value i of a page goes to index targets[i] of `out`, or to i without targets. */
typedef struct {
    int64_t width, bytes;
    uint64_t base;
    const uint32_t *targets;
    uint8_t *out;
    /* whether the page has more values than are decoded */
    int is_cut;
} Sink;

/* Values decoded before they are packed: they stay in the first-level cache. */
enum { DECODED = 512 };

static int put(const Sink *sink, const uint64_t *decoded, int64_t first, int64_t count) {
    uint32_t narrow[DECODED];
    const uint8_t *words = (const uint8_t *)decoded;
    if (sink->width == 4) {
        for (int64_t i = 0; i < count; i++) narrow[i] = (uint32_t)decoded[i];
        words = (const uint8_t *)narrow;
    }
    const int is_moved = sink->targets != NULL;
    return pack(words, sink->width, count, sink->bytes, sink->base, is_moved ? sink->targets + first : NULL,
                sink->out + (is_moved ? 0 : first * sink->bytes));
}

/* Unpacks values of `width` bits, of which `from` holds 32 each; reads no byte beyond them. */
static void unpack_miniblock(const uint8_t *from, int64_t bytes, int width, int64_t count, uint64_t *to) {
    const uint64_t mask = width == 64 ? ~(uint64_t)0 : ((uint64_t)1 << width) - 1;
    for (int64_t i = 0; i < count; i++) {
        const int64_t bit = i * width, at = bit >> 3, shift = bit & 7, left = bytes - at;
        uint8_t tail[16] = {0};
        const uint8_t *word = from + at;
        if (left < 9) {
            if (left > 0) memcpy(tail, word, left);
            word = tail;
        }
        uint64_t value = load8(word) >> shift;
        if (shift && width > 56) value |= (uint64_t)word[8] << (64 - shift);
        to[i] = value & mask;
    }
}

/* Values are the first one and the differences between neighbours, in blocks of miniblocks of equal bit width. All
 * arithmetic wraps around. */
static int decode_delta(Reader *r, int64_t count, const Sink *sink) {
    const uint64_t block = read_varint(r), parts = read_varint(r), stated = read_varint(r);
    uint64_t last = (uint64_t)read_int(r), decoded[DECODED];
    if (r->bad || parts == 0 || parts > 64 || block % 128 || block % parts) return DECLINED;
    if (stated < (uint64_t)count || (stated > (uint64_t)count && !sink->is_cut)) return DECLINED;
    const uint64_t values = block / parts;
    if (values == 0 || values % 32 || values >= DECODED) return DECLINED;
    if (count == 0) return 0;
    int64_t done = 1, held = 1;
    decoded[0] = last;
    while (done < count) {
        const uint64_t least = (uint64_t)read_int(r);
        if (r->bad || (uint64_t)(r->end - r->at) < parts) return DECLINED;
        const uint8_t *widths = r->at;
        r->at += parts;
        for (uint64_t part = 0; part < parts && done < count; part++) {
            const int width = widths[part];
            const int64_t bytes = (int64_t)values / 8 * width, left = r->end - r->at;
            if (width > 8 * sink->width || bytes > left) return DECLINED;
            if (held + (int64_t)values > DECODED) {
                if (put(sink, decoded, done - held, held)) return DECLINED;
                held = 0;
            }
            const int64_t some = count - done < (int64_t)values ? count - done : (int64_t)values;
            uint64_t *to = decoded + held;
            if (width) unpack_miniblock(r->at, left, width, some, to);
            else memset(to, 0, some * sizeof *to);
            for (int64_t i = 0; i < some; i++) to[i] = last += to[i] + least;
            r->at += bytes;
            done += some;
            held += some;
        }
    }
    return put(sink, decoded, done - held, held);
}

#ifdef HAS_SSE2
/* Two bytes of each of 8 values. */
static inline __m128i join_two(const uint8_t *from, int64_t stride) {
    const __m128i low = _mm_loadl_epi64((const __m128i *)from);
    return _mm_unpacklo_epi8(low, _mm_loadl_epi64((const __m128i *)(from + stride)));
}

/* Puts the bytes of 8 values together; returns their number. Byte k of value i is at from[k * stride + i]. */
static inline int64_t join_bytes(const uint8_t *from, int64_t stride, int64_t width, uint64_t *to) {
    const __m128i zero = _mm_setzero_si128(), a = join_two(from, stride), b = join_two(from + 2 * stride, stride);
    const __m128i c = width == 8 ? join_two(from + 4 * stride, stride) : zero;
    const __m128i d = width == 8 ? join_two(from + 6 * stride, stride) : zero;
    const __m128i first[2] = {_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)};
    const __m128i last[2] = {_mm_unpacklo_epi16(c, d), _mm_unpackhi_epi16(c, d)};
    for (int k = 0; k < 2; k++) {
        _mm_storeu_si128((__m128i *)(to + 4 * k), _mm_unpacklo_epi32(first[k], last[k]));
        _mm_storeu_si128((__m128i *)(to + 4 * k + 2), _mm_unpackhi_epi32(first[k], last[k]));
    }
    return 8;
}
#endif

/* Byte k of all values is stored together, then byte k + 1. */
static int decode_split(const Reader *r, int64_t count, const Sink *sink) {
    uint64_t decoded[DECODED];
    if (count > (r->end - r->at) / sink->width) return DECLINED;
    const int64_t stride = (r->end - r->at) / sink->width;
    if (stride * sink->width != r->end - r->at || (stride != count && !sink->is_cut)) return DECLINED;
    for (int64_t first = 0; first < count; first += DECODED) {
        const int64_t some = count - first < DECODED ? count - first : DECODED;
        int64_t i = 0;
#ifdef HAS_SSE2
        while (i + 8 <= some) i += join_bytes(r->at + first + i, stride, sink->width, decoded + i);
#endif
        for (; i < some; i++) {
            decoded[i] = 0;
            for (int64_t k = 0; k < sink->width; k++) decoded[i] |= (uint64_t)r->at[k * stride + first + i] << (8 * k);
        }
        if (put(sink, decoded, first, some)) return DECLINED;
    }
    return 0;
}

/* One bit a value becomes one byte. */
static int decode_bits(const Reader *r, int64_t count, const Sink *sink) {
    if ((count + 7) / 8 > r->end - r->at) return DECLINED;
    for (int64_t i = 0; i < count; i++) sink->out[sink->targets[i]] = r->at[i >> 3] >> (i & 7) & 1;
    return 0;
}

/* Booleans as runs, after 4 bytes that state their length. */
static int decode_bit_runs(Reader *r, int64_t count, const Sink *sink) {
    uint32_t bytes;
    if (r->end - r->at < (int64_t)sizeof bytes) return DECLINED;
    memcpy(&bytes, r->at, sizeof bytes);
    r->at += sizeof bytes;
    if (bytes > (uint64_t)(r->end - r->at)) return DECLINED;
    r->end = r->at + bytes;
#define ONE(at, v) sink->out[sink->targets[at]] = (uint8_t)v;
#define RUN(at, many, v) \
    if (v > 1) return DECLINED; \
    for (int64_t j = 0; j < many; j++) sink->out[sink->targets[(at) + j]] = (uint8_t)v;
    EACH_RUN(1, count, ONE, RUN);
#undef ONE
#undef RUN
    return 0;
}

/* Big-endian integers of `stored` bytes become little-endian ones of 16, with the sign extended. The last comes first,
 * since those of a dictionary are decoded in place. */
static int decode_big_endian(const Reader *r, int64_t stored, int64_t count, const Sink *sink) {
    if (count > (r->end - r->at) / stored) return DECLINED;
    for (int64_t i = count - 1; i >= 0; i--) {
        const uint8_t *from = r->at + i * stored;
        uint64_t low = 0, high = from[0] & 128 ? ~(uint64_t)0 : 0;
        uint8_t *to = sink->out + (sink->targets == NULL ? (uint64_t)i : sink->targets[i]) * 16;
        if (stored <= 8) {
            low = high;
            for (int64_t k = 0; k < stored; k++) low = low << 8 | from[k];
        } else {
            for (int64_t k = 0; k < stored - 8; k++) high = high << 8 | from[k];
            for (int64_t k = stored - 8; k < stored; k++) low = low << 8 | from[k];
        }
        memcpy(to, &low, 8);
        memcpy(to + 8, &high, 8);
    }
    return 0;
}

#endif
