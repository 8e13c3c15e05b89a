/* Decompresses pages: Snappy here, zstd and LZ4 by functions of the system's libraries. */
#ifndef WINDROW_CODECS_H
#define WINDROW_CODECS_H

#include <stddef.h>
#include <stdint.h>

#include "_snappy.h"

enum { RAW, SNAPPY, ZSTD, LZ4 };

/* ZSTD_decompressDCtx and LZ4_decompress_safe: neither writes beyond the capacity that it is given. */
typedef size_t (*zstd_function)(void *context, void *to, size_t capacity, const void *from, size_t bytes);
typedef int (*lz4_function)(const char *from, char *to, int bytes, int capacity);

/* Addresses of the system's functions, 0 for those that are missing. The context belongs to the calling thread; without
 * one, zstd would allocate and touch 160 KB for each page. */
typedef struct {
    int64_t zstd, zstd_context, lz4;
} system_codecs;

/* Returns 0 if the output is exactly raw_bytes; `out` has SLACK bytes more. */
static int decompress(int codec, const system_codecs *system, const uint8_t *in, int64_t stored_bytes, uint8_t *out,
                      int64_t raw_bytes) {
    if (codec == SNAPPY) return decompress_snappy(in, stored_bytes, out, raw_bytes);
    if (stored_bytes > INT32_MAX || raw_bytes > INT32_MAX) return DECLINED;
    if (codec == ZSTD && system->zstd && system->zstd_context) {
        const zstd_function function = (zstd_function)(intptr_t)system->zstd;
        const size_t found = function((void *)(intptr_t)system->zstd_context, out, (size_t)raw_bytes, in,
                                      (size_t)stored_bytes);
        return found == (size_t)raw_bytes ? 0 : DECLINED;
    }
    if (codec == LZ4 && system->lz4) {
        const lz4_function function = (lz4_function)(intptr_t)system->lz4;
        const int found = function((const char *)in, (char *)out, (int)stored_bytes, (int)raw_bytes);
        return found == raw_bytes ? 0 : DECLINED;
    }
    return DECLINED;
}

#endif
