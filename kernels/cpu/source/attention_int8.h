// Groups of the int8 cache in the order of AVX512-BF16 and AMX.
#pragma once

#include <immintrin.h>

#include "attention_state.h"

// Where element `i` of a group of bfloat16 lies in one of int8, so that `widen` need not move it to another lane.
inline ptrdiff_t int8_index(ptrdiff_t i) { return i / 64 * 64 + i % 32 / 8 * 16 + i % 64 / 32 * 8 + i % 8; }

// Integers up to 127 are exact in bfloat16. source [size] -> target [size], in the order of a group of bfloat16
inline void widen(const Int8* source, uint16_t* target, ptrdiff_t size) {
    struct Table {
        alignas(64) uint8_t high[128], low[128];
        Table() {
            for (int i = 0; i < 128; ++i) {
                const uint32_t bits = reinterpret<uint32_t>(static_cast<float>(i));
                high[i] = static_cast<uint8_t>(bits >> 24);
                low[i] = static_cast<uint8_t>(bits >> 16);
            }
        }
    };
    static const Table table;
    const __m512i high0 = _mm512_load_si512(table.high), high1 = _mm512_load_si512(table.high + 64);
    const __m512i low0 = _mm512_load_si512(table.low), low1 = _mm512_load_si512(table.low + 64);
    const __m512i sign = _mm512_set1_epi8(-128);
    for (ptrdiff_t i = 0; i < size; i += 64) {
        const __m512i bytes = _mm512_loadu_si512(source + i);
        const __m512i magnitude = _mm512_abs_epi8(bytes);
        const __m512i low = _mm512_permutex2var_epi8(low0, magnitude, low1);
        // high | (bytes & sign)
        const __m512i high =
            _mm512_ternarylogic_epi32(_mm512_permutex2var_epi8(high0, magnitude, high1), bytes, sign, 0xf8);
        _mm512_store_si512(target + i, _mm512_unpacklo_epi8(low, high));
        _mm512_store_si512(target + i + 32, _mm512_unpackhi_epi8(low, high));
    }
}
