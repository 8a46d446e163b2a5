// Vectors as wide as the machine's, and the conversions between them and what lies in memory.
//
// Written with the vector extensions that GCC and Clang share, so that one source serves every instruction set: the
// compiler is told the machine (-march=native) and picks the instructions.
#pragma once

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(ENGINED_LANES)
constexpr int LANES = ENGINED_LANES;  // tests walk the paths of machines that they do not have
#elif defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));
typedef uint32_t Bits __attribute__((vector_size(LANES * sizeof(uint32_t))));
typedef int32_t Integers __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef uint16_t Halves __attribute__((vector_size(LANES * sizeof(uint16_t))));

// The upper half of a float.
struct BFloat16 {
    uint16_t bits;
};

// The same in packed weights, where columns i and i + LANES of a pair of vectors lie side by side: one shift and one
// mask make two vectors of floats out of one load, which is what a product with a single row waits for.
struct PairedBFloat16 {
    uint16_t bits;
};

template <typename To, typename From>
inline To reinterpret(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

inline Vector broadcast(float value) { return value - Vector{}; }

inline Vector load(const float* source) {
    Vector vector;
    std::memcpy(&vector, source, sizeof(vector));
    return vector;
}

inline Vector load(const BFloat16* source) {
    Halves halves;
    std::memcpy(&halves, source, sizeof(halves));
#if defined(__AVX512F__)
    // GCC 12 would convert four parts one by one.
    if constexpr (LANES == 16)
        return reinterpret<Vector>(reinterpret<Bits>(_mm512_cvtepu16_epi32(reinterpret<__m256i>(halves))) << 16);
#endif
    return reinterpret<Vector>(__builtin_convertvector(halves, Bits) << 16);
}

template <int VECTORS, typename T>
inline void load_columns(const T* source, Vector (&columns)[VECTORS]) {
    for (int v = 0; v < VECTORS; ++v) columns[v] = load(source + v * LANES);
}

inline void load_columns(const PairedBFloat16* source, Vector (&columns)[2]) {
    Bits pairs;
    std::memcpy(&pairs, source, sizeof(pairs));
    columns[0] = reinterpret<Vector>(pairs << 16);
    columns[1] = reinterpret<Vector>(pairs & 0xffff0000u);
}

inline void store(float* target, Vector vector) { std::memcpy(target, &vector, sizeof(vector)); }

// Rounds to nearest, ties to even; not-a-number stays one.
inline void store(BFloat16* target, Vector vector) {
#if defined(__AVX512BF16__)
    // One instruction instead of eight; it takes what is below 2^-126 for zero.
    if constexpr (LANES == 16) {
        const __m256bh rounded = _mm512_cvtneps_pbh(reinterpret<__m512>(vector));
        std::memcpy(target, &rounded, sizeof(rounded));
        return;
    }
#endif
    const Bits bits = reinterpret<Bits>(vector);
    const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Bits quiet_nan = (bits >> 16) | 0x40;
    const Halves halves = __builtin_convertvector(vector == vector ? rounded : quiet_nan, Halves);
    std::memcpy(target, &halves, sizeof(halves));
}

inline float to_float(float value) { return value; }
inline float to_float(BFloat16 value) { return reinterpret<float>(static_cast<uint32_t>(value.bits) << 16); }

inline void from_float(float* target, float value) { *target = value; }
inline void from_float(BFloat16* target, float value) {
    const uint32_t bits = reinterpret<uint32_t>(value);
    const bool is_nan = value != value;
    target->bits = static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// In a fixed order, whatever the compiler would like: the same bits on every call.
inline float sum_lanes(Vector vector) {
    float sum = 0;
    for (int lane = 0; lane < LANES; ++lane) sum += vector[lane];
    return sum;
}

// e to the power of x, within 2 units in the last place; x is cut to what a float can hold, -87 to 88.
inline Vector exponential(Vector x) {
    const Vector given = x;
    x = x < -87.0f ? broadcast(-87.0f) : x;
    x = x > 88.0f ? broadcast(88.0f) : x;
    // Adding 1.5 * 2^23 leaves the nearest integer of x / ln 2 in the low bits of the sum.
    const Vector magic = broadcast(12582912.0f);
    const Vector shifted = x * 1.44269504088896341f + magic;
    const Vector integer = shifted - magic;
    // ln 2 in two parts, so that the product with an integer is exact in the first.
    Vector rest = x - integer * 0.693359375f;
    rest = rest - integer * -2.12194440e-4f;
    Vector power = broadcast(1.9875691500e-4f);
    power = power * rest + 1.3981999507e-3f;
    power = power * rest + 8.3334519073e-3f;
    power = power * rest + 4.1665795894e-2f;
    power = power * rest + 1.6666665459e-1f;
    power = power * rest + 5.0000001201e-1f;
    power = power * rest * rest + rest + 1.0f;
    const Bits exponent = (reinterpret<Bits>(shifted) - reinterpret<Bits>(magic)) << 23;
    return given == given ? reinterpret<Vector>(reinterpret<Bits>(power) + exponent) : given;
}
