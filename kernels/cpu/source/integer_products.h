// Products of rows and weights of 8 bits: sums of integers, exact, one for each group of inputs, which their scales
// turn into floats. A float sum takes its groups in order, so it has the same bits however many rows there are. A group
// has some steps, which are what instructions and caches take at a time.
#pragma once

#include "amx.h"
#include "quantize.h"

// Columns of a panel of weights, [STEP / 4][PANEL][4] for each step: 4 inputs are what instructions sum at once.
constexpr ptrdiff_t PANEL = 16;
constexpr ptrdiff_t STEP_BYTES = STEP * PANEL;
// Rows that pass together.
constexpr ptrdiff_t MAX_ROWS = 32;
// How far ahead memory is fetched. Measured on an Intel server with AMX with int8, for one row: 5.1 ms, with 8 KiB 5.7.
constexpr ptrdiff_t PREFETCH_BYTES = 3072;

// One panel of weights. Whoever is first to multiply by it brings its steps into the cache, one after the other.
struct IntegerPanel {
    // [steps][STEP_BYTES], with WEIGHT_BIAS added
    const uint8_t* weights;
    // [groups][PANEL]
    const BFloat16* scales;
    // Where the weights come from, in some form, [steps][SOURCE_BYTES]; and those that come next.
    const uint8_t* source;
    const uint8_t* next_source;
    ptrdiff_t steps;
    void (*bring)(const IntegerPanel& panel, ptrdiff_t step);
    // Steps that tiles leave between bringing and multiplying: to load what has just been written they would wait.
    ptrdiff_t lead;

    // Fetches from memory what is wanted soon after this step.
    template <ptrdiff_t SOURCE_BYTES>
    void fetch_ahead(ptrdiff_t step) const {
        constexpr ptrdiff_t BYTES = SOURCE_BYTES, LINE = sizeof(Line);
        const ptrdiff_t then = step + (PREFETCH_BYTES + BYTES - 1) / BYTES;
        const uint8_t* ahead = then < steps ? source + then * BYTES : next_source + (then - steps) * BYTES;
        for (ptrdiff_t i = 0; i < BYTES; i += LINE) __builtin_prefetch(ahead + i);
    }
};

// Some rows, at most MAX_ROWS of those from `first` on, which is a multiple of MAX_ROWS.
struct RowRange {
    const QuantizedRows& all;
    ptrdiff_t first, count;

    const int8_t* values(ptrdiff_t row, ptrdiff_t step) const { return all.at(first + row, step); }
    float scale(ptrdiff_t row, ptrdiff_t group) const { return all.scales[(first + row) * all.groups + group]; }
    int32_t correction(ptrdiff_t row, ptrdiff_t group) const {
        return all.corrections[(first + row) * all.groups + group];
    }
};

// Rows times some panels: sums [panels][rows][PANEL].
void multiply_panels(RowTiles& tiles, const RowRange& rows, ptrdiff_t count, const IntegerPanel* panels, bool is_first,
                     float* sums);
