// Rounding to 8 and to 4 bits.
#include "quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace {

// What is smaller than that counts as zero: its reciprocal would be infinite.
constexpr float SMALLEST = 1e-30f;
constexpr float LARGEST = std::numeric_limits<float>::max();
// Adding it leaves the nearest integer in the low bits of the sum.
constexpr float MAGIC = 12582912.0f;

typedef int8_t Bytes __attribute__((vector_size(LANES)));

typedef int32_t Places __attribute__((vector_size(LANES * 4)));

// Each lane and the one DISTANCE from it, combined, and then those that are nearer: all, if DISTANCE is half of them.
template <int DISTANCE = LANES / 2, typename Combine>
Integers across_lanes(Integers values, const Combine& combine) {
    if constexpr (DISTANCE > 0) {
        Places places;
        for (int lane = 0; lane < LANES; ++lane) places[lane] = lane ^ DISTANCE;
        return across_lanes<DISTANCE / 2>(combine(values, __builtin_shuffle(values, places)), combine);
    }
    return values;
}

// The largest magnitude of values [count]; infinite or not a number if one of them is.
float reach(const float* values, ptrdiff_t count) {
    // The bits of magnitudes are in the order of the magnitudes, those of what is not finite behind all others.
    const auto larger = [](Integers a, Integers b) { return a > b ? a : b; };
    Integers largest = {};
    for (ptrdiff_t i = 0; i < count; i += LANES)
        largest = larger(largest, reinterpret<Integers>(load(values + i)) & 0x7fffffff);
    return reinterpret<float>(across_lanes(largest, larger)[0]);
}

// Values [count] times `factor`, to the nearest integers, each STEP of them `stride` after the last; returns their sum.
int32_t round(const float* values, ptrdiff_t count, float factor, int8_t* rounded, ptrdiff_t stride) {
    Integers sums = {};
    for (ptrdiff_t step = 0; step < count; step += STEP, rounded += stride)
        for (ptrdiff_t i = 0; i < STEP; i += LANES) {
            const Vector shifted = load(values + step + i) * factor + MAGIC;
            const Integers integers = reinterpret<Integers>(shifted) - reinterpret<Integers>(broadcast(MAGIC));
            const Bytes bytes = __builtin_convertvector(integers, Bytes);
            std::memcpy(rounded + i, &bytes, sizeof(bytes));
            sums += integers;
        }
    return across_lanes(sums, [](Integers a, Integers b) { return a + b; })[0];
}

// The sum and the difference of each lane and the one DISTANCE from it, and then of those that are nearer.
template <int DISTANCE>
inline Vector rotate_lanes(Vector vector) {
    if constexpr (DISTANCE > 0) {
        Places places;
        Vector signs;
        for (int lane = 0; lane < LANES; ++lane) places[lane] = lane ^ DISTANCE;
        for (int lane = 0; lane < LANES; ++lane) signs[lane] = lane & DISTANCE ? -1.0f : 1.0f;
        return rotate_lanes<DISTANCE / 2>(vector * signs + __builtin_shuffle(vector, places));
    }
    return vector;
}

// Sums and differences of what lies DISTANCE vectors apart, and then of what is nearer.
template <int DISTANCE, int VECTORS>
inline void rotate_vectors(Vector (&vectors)[VECTORS]) {
    if constexpr (DISTANCE > 0) {
        for (int v = 0; v < VECTORS; ++v)
            if ((v & DISTANCE) == 0) {
                const Vector a = vectors[v], b = vectors[v + DISTANCE];
                vectors[v] = a + b;
                vectors[v + DISTANCE] = a - b;
            }
        rotate_vectors<DISTANCE / 2>(vectors);
    }
}

// STEPS steps of values, times Hadamard's matrix of their size.
template <int STEPS>
void rotate_steps(float* values) {
    constexpr int VECTORS = STEP / LANES;
    for (ptrdiff_t i = 0; STEPS > 1 && i < STEP; i += LANES) {
        Vector vectors[STEPS];
        for (int s = 0; s < STEPS; ++s) vectors[s] = load(values + s * STEP + i);
        rotate_vectors<STEPS / 2>(vectors);
        for (int s = 0; s < STEPS; ++s) store(values + s * STEP + i, vectors[s]);
    }
    for (int s = 0; s < STEPS; ++s, values += STEP) {
        Vector vectors[VECTORS];
        for (int v = 0; v < VECTORS; ++v) vectors[v] = rotate_lanes<LANES / 2>(load(values + v * LANES));
        rotate_vectors<VECTORS / 2>(vectors);
        for (int v = 0; v < VECTORS; ++v) store(values + v * LANES, vectors[v]);
    }
}

// Steps that a rotation takes together: the more, the farther it spreads what is large. A power of two.
ptrdiff_t rotated_steps(ptrdiff_t steps) {
    constexpr ptrdiff_t MAX_STEPS = 8;
    return std::min(steps & -steps, MAX_STEPS);
}

// Values [steps][STEP] times matrices of 1 and -1, which lengthen them by the root of their size.
void rotate(float* values, ptrdiff_t steps) {
    const ptrdiff_t together = rotated_steps(steps);
    for (ptrdiff_t step = 0; step < steps; step += together, values += together * STEP) {
        switch (together) {
            case 8: rotate_steps<8>(values); break;
            case 4: rotate_steps<4>(values); break;
            case 2: rotate_steps<2>(values); break;
            default: rotate_steps<1>(values);
        }
    }
}

// A row of x or of weights as floats, with zeros behind the last input up to `depth`. It lasts until the next call.
float* widen(const BFloat16* values, ptrdiff_t inputs, ptrdiff_t depth) {
    static thread_local std::vector<float> widened;
    widened.resize(std::max<ptrdiff_t>(widened.size(), depth));
    float* target = widened.data();
    ptrdiff_t i = 0;
    for (; i + LANES <= inputs; i += LANES) store(target + i, load(values + i));
    for (; i < inputs; ++i) target[i] = to_float(values[i]);
    std::fill(target + inputs, target + depth, 0.0f);
    return target;
}

// Between the exponents of float32 and float16, whose other bits are the same but for 13 of the fraction. (GCC knows
// float16 itself from version 12 on, and needs a library for it on old machines.)
constexpr float HALF_TO_FLOAT = 0x1p112f, FLOAT_TO_HALF = 0x1p-112f;

// Rounds to nearest, ties to even; what is below 2^-14 may be rounded twice.
uint16_t to_half(float value) {
    const uint32_t sign = reinterpret<uint32_t>(value) >> 16 & 0x8000;
    if (value != value) return 0x7e00;
    const uint32_t bits = reinterpret<uint32_t>(std::abs(value) * FLOAT_TO_HALF);
    const uint32_t rounded = (bits + 0xfff + (bits >> 13 & 1)) >> 13;
    return static_cast<uint16_t>(sign | std::min(rounded, 0x7c00u));
}

// The numbers 0 to 15 reach from the least to the largest value.
Block quantize_block(const float* values) {
    const auto [least, largest] = std::minmax_element(values, values + Block::SIZE);
    Block block{to_half((*largest - *least) / 15.0f), to_half(*least), {}};
    const float scale = from_half(block.scale), minimum = from_half(block.minimum);
    for (ptrdiff_t i = 0; i < Block::SIZE; ++i) {
        const float steps = scale > 0.0f ? (values[i] - minimum) / scale : 0.0f;
        const auto number = static_cast<uint8_t>(std::nearbyint(std::clamp(steps, 0.0f, 15.0f)));
        block.numbers[i % (Block::SIZE / 2)] |= static_cast<uint8_t>(i < Block::SIZE / 2 ? number : number << 4);
    }
    return block;
}

}  // namespace

void quantize_rows(const Team& team, const BFloat16* x, ptrdiff_t rows, ptrdiff_t inputs, Rounding rounding,
                   void* prepared) {
    const QuantizedRows all(prepared, rows, inputs, rounding);
    const ptrdiff_t size = all.group_steps() * STEP;
    const Range mine = team.share(rows);
    for (ptrdiff_t r = mine.begin; r < mine.end; ++r) {
        float* values = widen(x + r * inputs, inputs, all.depth());
        if (rounding == Rounding::ROTATED) rotate(values, all.steps);
        for (ptrdiff_t g = 0; g < all.groups; ++g) {
            const float largest = reach(values + g * size, size);
            const bool is_usual = largest >= SMALLEST && largest <= LARGEST;
            const float factor = is_usual ? 127.0f / largest : 0.0f;
            const int32_t sum = round(values + g * size, size, factor, all.at(r, g * all.group_steps()),
                                      QuantizedRows::TOGETHER_BYTES);
            all.scales[r * all.groups + g] = largest < SMALLEST ? 0.0f : is_usual ? largest * (1.0f / 127.0f) : NAN;
            all.corrections[r * all.groups + g] = -WEIGHT_BIAS * sum;
        }
    }
}

BFloat16 scale_reaching(float largest) {
    if (largest < SMALLEST) return {0};
    if (!(largest <= LARGEST)) return {0x7fc0};
    return {static_cast<uint16_t>((reinterpret<uint32_t>(largest / 127.0f) + 0xffff) >> 16)};
}

BFloat16 quantize_column(const BFloat16* weights, ptrdiff_t inputs, int8_t* values) {
    const ptrdiff_t steps = steps_of(inputs), depth = steps * STEP;
    float* rotated = widen(weights, inputs, depth);
    rotate(rotated, steps);
    const float scale = to_float(scale_reaching(reach(rotated, depth)));
    round(rotated, depth, scale > 0.0f ? 1.0f / scale : 0.0f, values, STEP);
    // Both factors are longer by the root of the size.
    BFloat16 result;
    from_float(&result, scale / static_cast<float>(rotated_steps(steps) * STEP));
    return result;
}

void quantize_blocks(const Team& team, const BFloat16* weight, ptrdiff_t outputs, ptrdiff_t inputs, Block* blocks) {
    const ptrdiff_t count = blocks_of(inputs);
    const Range mine = team.share(outputs);
    float weights[Block::SIZE];
    for (ptrdiff_t o = mine.begin; o < mine.end; ++o)
        for (ptrdiff_t b = 0; b < count; ++b) {
            const ptrdiff_t first = b * Block::SIZE, existing = std::min(Block::SIZE, inputs - first);
            for (ptrdiff_t i = 0; i < Block::SIZE; ++i)
                weights[i] = i < existing ? to_float(weight[o * inputs + first + i]) : 0.0f;
            blocks[o * count + b] = quantize_block(weights);
        }
}

float from_half(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16, rest = (half & 0x7fffu) << 13;
    const bool is_finite = (half & 0x7c00) != 0x7c00;
    const float magnitude =
        is_finite ? reinterpret<float>(rest) * HALF_TO_FLOAT : reinterpret<float>(rest | 0x7f800000u);
    return reinterpret<float>(reinterpret<uint32_t>(magnitude) | sign);
}
