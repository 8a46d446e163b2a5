// y = x W^T + bias, for weights of several formats that are packed once: what every operation on them has in common.
#pragma once

#include "threads.h"

// Inputs, bias and result have the type that the format is named after; with the quantized ones they are bfloat16.
enum class WeightFormat : int64_t { FLOAT32, BFLOAT16, INT8, INT4 };

// One packed weight.
struct Linear {
    WeightFormat format;
    // Of W. A gated one holds two halves, gate and up, and its result is silu(gate) * up, with half as many columns.
    ptrdiff_t outputs, inputs;
    int64_t is_gated;
    const void* weight;
    // [outputs] or null
    const void* bias;

    ptrdiff_t halves() const { return is_gated ? 2 : 1; }
    // Columns of y.
    ptrdiff_t columns() const { return outputs / halves(); }
};

// Bytes of `packed`, with zeros where the last panel of columns has none.
ptrdiff_t packed_bytes(const Linear& linear);

// weight [outputs][inputs], as `linear` describes it -> packed. My share of it. The weight has the type of the inputs,
// but for INT4, which takes blocks: [outputs][blocks of inputs], as quantize.h has them.
void pack(const Team& team, const Linear& linear, const void* weight, void* packed);

// Bytes of the form that `multiply` reads x in, aligned to 64; 0: it reads x itself.
ptrdiff_t prepared_bytes(const Linear& linear, ptrdiff_t rows);

// x [rows][inputs] -> prepared, which serves all weights of this format and of as many inputs. My share of the rows;
// the team must have prepared them all before any of it multiplies.
void prepare(const Team& team, const Linear& linear, const void* x, void* prepared, ptrdiff_t rows);

// x [rows][inputs], or what `prepare` made of it -> y [rows][columns]. My share of the columns. A row has the same bits
// however many rows there are.
void multiply(const Team& team, const Linear& linear, const void* x, void* y, ptrdiff_t rows);
