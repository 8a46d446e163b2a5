// Rounding to 8 and to 4 bits.
#include "quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace {

// What is smaller than that counts as zero: its reciprocal would be infinite.
constexpr float SMALLEST = 1e-30f;
constexpr float LARGEST = std::numeric_limits<float>::max();
// Adding it leaves the nearest integer in the low bits of the sum.
constexpr float MAGIC = 12582912.0f;

typedef int8_t Bytes __attribute__((vector_size(LANES)));

typedef int32_t Places __attribute__((vector_size(LANES * 4)));

// Every lane has the combination of all.
template <typename Combine>
Integers across_lanes(Integers values, const Combine& combine) {
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
        Places places;
        for (int lane = 0; lane < LANES; ++lane) places[lane] = lane ^ distance;
        values = combine(values, __builtin_shuffle(values, places));
    }
    return values;
}

// GROUP numbers, in registers.
struct Numbers {
    static constexpr int VECTORS = GROUP / LANES;
    Vector vectors[VECTORS];

    // values [count], and zeros behind them.
    Numbers(const BFloat16* values, ptrdiff_t count) {
        BFloat16 padded[GROUP] = {};
        if (count < GROUP) values = std::copy_n(values, count, padded) - count;
        for (int v = 0; v < VECTORS; ++v) vectors[v] = load(values + v * LANES);
    }

    // The largest magnitude; infinite or not a number if one of them is.
    float reach() const {
        // The bits of magnitudes are in the order of the magnitudes, those of what is not finite behind all others.
        const auto larger = [](Integers a, Integers b) { return a > b ? a : b; };
        Integers largest = {};
        for (const Vector vector : vectors) largest = larger(largest, reinterpret<Integers>(vector) & 0x7fffffff);
        return reinterpret<float>(across_lanes(largest, larger)[0]);
    }

    // All of them times `factor`, to the nearest integers; returns the sums of those in each lane.
    Integers round(float factor, int8_t* rounded) const {
        Integers sums = {};
        for (int v = 0; v < VECTORS; ++v) {
            const Vector shifted = vectors[v] * factor + MAGIC;
            const Integers integers = reinterpret<Integers>(shifted) - reinterpret<Integers>(broadcast(MAGIC));
            const Bytes bytes = __builtin_convertvector(integers, Bytes);
            std::memcpy(rounded + v * LANES, &bytes, sizeof(bytes));
            sums += integers;
        }
        return sums;
    }
};

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

void quantize_rows(const Team& team, const BFloat16* x, ptrdiff_t rows, ptrdiff_t inputs, void* prepared) {
    const QuantizedRows all(prepared, rows, inputs);
    const Range mine = team.share(rows);
    for (ptrdiff_t r = mine.begin; r < mine.end; ++r) {
        const QuantizedRows row = all.from(r);
        for (ptrdiff_t g = 0; g < all.groups; ++g) {
            const Numbers numbers(x + r * inputs + g * GROUP, std::min(GROUP, inputs - g * GROUP));
            const float largest = numbers.reach();
            const bool is_usual = largest >= SMALLEST && largest <= LARGEST;
            row.scales[g] = largest < SMALLEST ? 0.0f : is_usual ? largest * (1.0f / 127.0f) : NAN;
            const Integers sums = numbers.round(is_usual ? 127.0f / largest : 0.0f, row.values + g * GROUP);
            if constexpr (WEIGHT_BIAS != 0) {
                const Integers sum = across_lanes(sums, [](Integers a, Integers b) { return a + b; });
                row.corrections[g] = -WEIGHT_BIAS * sum[0];
            }
        }
    }
}

BFloat16 scale_reaching(float largest) {
    if (largest < SMALLEST) return {0};
    if (!(largest <= LARGEST)) return {0x7fc0};
    return {static_cast<uint16_t>((reinterpret<uint32_t>(largest / 127.0f) + 0xffff) >> 16)};
}

QuantizedGroup quantize_group(const BFloat16* values, ptrdiff_t count) {
    const Numbers numbers(values, count);
    QuantizedGroup result{scale_reaching(numbers.reach()), {}};
    const float scale = to_float(result.scale);
    numbers.round(scale > 0.0f ? 1.0f / scale : 0.0f, result.values);
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
