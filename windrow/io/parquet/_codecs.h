/* Decompresses pages: Snappy here, zstd and LZ4 by functions of the system's libraries. */
#ifndef WINDROW_CODECS_H
#define WINDROW_CODECS_H

#include <stddef.h>
#include <stdint.h>

#include "_snappy.h"

enum { RAW, SNAPPY, ZSTD, LZ4 };

/* ZSTD_decompress and LZ4_decompress_safe: neither writes beyond the capacity that it is given. */
typedef size_t (*zstd_function)(void *to, size_t capacity, const void *from, size_t bytes);
typedef int (*lz4_function)(const char *from, char *to, int bytes, int capacity);

/* Returns 0 if the output is exactly raw_bytes; `out` has SLACK bytes more. `function` is the address of what
 * decompresses zstd or LZ4. */
static int decompress(int codec, intptr_t function, const uint8_t *in, int64_t stored_bytes, uint8_t *out,
                      int64_t raw_bytes) {
    if (codec == SNAPPY) return decompress_snappy(in, stored_bytes, out, raw_bytes);
    if (!function || stored_bytes > INT32_MAX || raw_bytes > INT32_MAX) return DECLINED;
    if (codec == ZSTD) {
        const size_t found = ((zstd_function)function)(out, (size_t)raw_bytes, in, (size_t)stored_bytes);
        return found == (size_t)raw_bytes ? 0 : DECLINED;
    }
    if (codec != LZ4) return DECLINED;
    const int found = ((lz4_function)function)((const char *)in, (char *)out, (int)stored_bytes, (int)raw_bytes);
    return found == raw_bytes ? 0 : DECLINED;
}

#endif
