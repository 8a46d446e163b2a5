// How numbers become few bits: rows of x when they meet a quantized weight, and weights that come as bfloat16.
#pragma once

#include "threads.h"
#include "vector.h"

// Inputs that one step of the products takes.
constexpr ptrdiff_t STEP = 64;

inline ptrdiff_t steps_of(ptrdiff_t inputs) { return (inputs + STEP - 1) / STEP; }

// Few of the inputs of SmolLM2-135M are far larger than the others: with one scale for a whole row its perplexity rises
// by 3.3 %. There are two ways to keep it within 1 %.
enum class Rounding {
    // The inputs of a step share a scale, so the sums of each step must be scaled.
    STEPS,
    // The row is rotated, which spreads what is large over many inputs; then all of it shares a scale. The weights must
    // be rotated too.
    ROTATED,
};

// Of rows that meet weights of these formats. Those of 4 bits are kept as a checkpoint has them, so not rotated.
constexpr Rounding INT8_ROUNDING = Rounding::ROTATED, INT4_ROUNDING = Rounding::STEPS;

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

// Rows of x in 8 bits: x, rotated or not, is about value times the scale of its group.
struct QuantizedRows {
    // Rows whose values of one step lie together: 1 KiB, as many as a tile of AMX has.
    static constexpr ptrdiff_t TOGETHER = 16;
    static constexpr ptrdiff_t TOGETHER_BYTES = TOGETHER * STEP;

    ptrdiff_t steps, groups;
    // [rows / TOGETHER, rounded up][steps][TOGETHER][STEP], with zeros behind the last input
    int8_t* values;
    // [rows][groups]; not a number where x has some that is not finite
    float* scales;
    // [rows][groups], what the bias of the weights adds too much, negative
    int32_t* corrections;

    QuantizedRows(void* prepared, ptrdiff_t rows, ptrdiff_t inputs, Rounding rounding)
        : steps(steps_of(inputs)),
          groups(rounding == Rounding::STEPS ? steps : 1),
          values(static_cast<int8_t*>(prepared)),
          scales(reinterpret_cast<float*>(values + value_bytes(rows))),
          corrections(reinterpret_cast<int32_t*>(scales + rows * groups)) {}

    static ptrdiff_t bytes(ptrdiff_t rows, ptrdiff_t inputs, Rounding rounding) {
        const QuantizedRows any(nullptr, 0, inputs, rounding);
        return any.value_bytes(rows) + rows * any.groups * static_cast<ptrdiff_t>(sizeof(float) + sizeof(int32_t));
    }

    ptrdiff_t depth() const { return steps * STEP; }
    ptrdiff_t group_steps() const { return steps / groups; }
    // [STEP]
    int8_t* at(ptrdiff_t row, ptrdiff_t step) const {
        return values + (row / TOGETHER * steps + step) * TOGETHER_BYTES + row % TOGETHER * STEP;
    }

   private:
    ptrdiff_t value_bytes(ptrdiff_t rows) const {
        return (rows + TOGETHER - 1) / TOGETHER * steps * TOGETHER_BYTES;
    }
};

// x [rows][inputs] -> prepared, `QuantizedRows::bytes` of them. My share of the rows.
void quantize_rows(const Team& team, const BFloat16* x, ptrdiff_t rows, ptrdiff_t inputs, Rounding rounding,
                   void* prepared);

// One column of weights, rotated -> values [steps][STEP], rounded multiples of the scale that is returned, -127 to 127.
// With these, products with rotated rows are what they were without rotation.
BFloat16 quantize_column(const BFloat16* weights, ptrdiff_t inputs, int8_t* values);

// The least bfloat16 with which 127 steps reach `largest`.
BFloat16 scale_reaching(float largest);

// 32 weights in 4 bits, as Q4_1 of GGUF has them: each is its number times the scale, plus the minimum. Byte i holds
// the numbers i and, in its upper half, i + 16.
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
