// How numbers become few bits: rows of x when they meet a quantized weight, and weights that come as bfloat16.
#pragma once

#include "threads.h"
#include "vector.h"

// Inputs that share a scale, in rows of x and in weights: as many as one step of the products takes. With one scale for
// a whole row the perplexity of SmolLM2-135M rises by 4 %, because few of its inputs are far larger than the others;
// with 64 it is 0.4 %.
constexpr ptrdiff_t GROUP = 64;

inline ptrdiff_t groups_of(ptrdiff_t inputs) { return (inputs + GROUP - 1) / GROUP; }

#if (defined(__AVX512VNNI__) || defined(__AVXVNNI__)) && !defined(__AMX_INT8__)
// The instruction takes one factor without a sign: weights have 128 added to them, which rows then correct.
constexpr uint8_t WEIGHT_BIAS = 128;
#else
constexpr uint8_t WEIGHT_BIAS = 0;
#endif

// A line of the cache.
struct alignas(64) Line {
    uint8_t bytes[64];
};

// Rows of x in 8 bits: x is about value times the scale of its group.
struct QuantizedRows {
    ptrdiff_t groups;
    // [rows][groups * GROUP], with zeros behind the last input
    int8_t* values;
    // [rows][groups]; not a number where x has some that is not finite
    float* scales;
    // [rows][groups], what the bias of the weights adds too much, negative
    int32_t* corrections;

    QuantizedRows(void* prepared, ptrdiff_t rows, ptrdiff_t inputs)
        : groups(groups_of(inputs)),
          values(static_cast<int8_t*>(prepared)),
          scales(reinterpret_cast<float*>(values + rows * groups * GROUP)),
          corrections(reinterpret_cast<int32_t*>(scales + rows * groups)) {}

    static ptrdiff_t bytes(ptrdiff_t rows, ptrdiff_t inputs) {
        return rows * groups_of(inputs) * (GROUP + static_cast<ptrdiff_t>(sizeof(float) + sizeof(int32_t)));
    }

    // Those from `row` on.
    QuantizedRows from(ptrdiff_t row) const {
        QuantizedRows rest = *this;
        rest.values += row * groups * GROUP;
        rest.scales += row * groups;
        rest.corrections += row * groups;
        return rest;
    }
};

// x [rows][inputs] -> prepared, `QuantizedRows::bytes` of them. My share of the rows.
void quantize_rows(const Team& team, const BFloat16* x, ptrdiff_t rows, ptrdiff_t inputs, void* prepared);

// One group in 8 bits: values are rounded multiples of the scale, -127 to 127.
struct QuantizedGroup {
    BFloat16 scale;
    int8_t values[GROUP];
};

// values [count], at most GROUP of them; the others count as zeros.
QuantizedGroup quantize_group(const BFloat16* values, ptrdiff_t count);

// The least bfloat16 with which 127 steps reach `largest`.
BFloat16 scale_reaching(float largest);

// 32 weights in 4 bits, as Q4_1 of GGUF has them: each is its number times the scale, plus the minimum. Byte i holds the
// numbers i and, in its upper half, i + 16.
struct Block {
    static constexpr ptrdiff_t SIZE = 32;
    // float16
    uint16_t scale, minimum;
    uint8_t numbers[SIZE / 2];

    uint32_t number(ptrdiff_t i) const { return i < SIZE / 2 ? numbers[i] & 15 : numbers[i - SIZE / 2] >> 4; }
};

inline ptrdiff_t blocks_of(ptrdiff_t inputs) { return (inputs + Block::SIZE - 1) / Block::SIZE; }

// weight [outputs][inputs] -> blocks [outputs][blocks of inputs]. My share of the outputs.
void quantize_blocks(const Team& team, const BFloat16* weight, ptrdiff_t outputs, ptrdiff_t inputs, Block* blocks);

float from_half(uint16_t half);
