// Sums of products of bytes, four in each lane of a vector, by what the machine has.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "vector.h"

// LANES columns, 4 inputs each.
typedef int16_t Shorts __attribute__((vector_size(LANES * 4)));

// Adds to each column the product of its 4 weights with 4 values.
inline Integers add_products(Integers sums, Integers weights, int32_t values) {
#if defined(__AVX512VNNI__)
    if constexpr (LANES == 16)
        return reinterpret<Integers>(_mm512_dpbusd_epi32(reinterpret<__m512i>(sums), reinterpret<__m512i>(weights),
                                                         _mm512_set1_epi32(values)));
#endif
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
    if constexpr (LANES == 8)
        return reinterpret<Integers>(_mm256_dpbusd_epi32(reinterpret<__m256i>(sums), reinterpret<__m256i>(weights),
                                                         _mm256_set1_epi32(values)));
#elif defined(__AVX2__)
    // Sums of two products fit 16 bits, since no factor is below -127.
    if constexpr (LANES == 8) {
        const __m256i signed_weights = reinterpret<__m256i>(weights);
        const __m256i factors = _mm256_sign_epi8(_mm256_set1_epi32(values), signed_weights);
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(signed_weights), factors);
        return sums + reinterpret<Integers>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
#endif
    const Integers factors = values - Integers{};
    const auto even = [](Integers bytes) { return reinterpret<Shorts>(bytes) << 8 >> 8; };
    const auto odd = [](Integers bytes) { return reinterpret<Shorts>(bytes) >> 8; };
    const Shorts pairs = even(weights) * even(factors) + odd(weights) * odd(factors);
    return sums + (reinterpret<Integers>(pairs) << 16 >> 16) + (reinterpret<Integers>(pairs) >> 16);
}
