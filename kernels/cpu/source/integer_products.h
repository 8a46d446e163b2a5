// Products of rows and weights of 8 bits: sums of integers, exact, one for each group of inputs, which their scales turn
// into floats. A float sum takes its groups in order, so it has the same bits however many rows there are.
#pragma once

#include "amx.h"
#include "quantize.h"

// Columns of a panel of weights, [GROUP / 4][PANEL][4] for each group: 4 inputs are what instructions sum at once.
constexpr ptrdiff_t PANEL = 16;
constexpr ptrdiff_t GROUP_BYTES = GROUP * PANEL;
// Rows that pass together.
constexpr ptrdiff_t MAX_ROWS = 32;
// How far ahead memory is fetched. Measured on an Intel server with AMX with int8, for one row: 5.1 ms, with 8 KiB 5.7.
constexpr ptrdiff_t PREFETCH_BYTES = 3072;

// One panel of weights. Whoever is first to multiply by it brings its groups into the cache, one after the other.
struct IntegerPanel {
    // [groups][GROUP_BYTES], with WEIGHT_BIAS added
    const uint8_t* weights;
    // [groups][PANEL]
    const BFloat16* scales;
    // Where the weights come from, in some form, [groups][GROUP_SIZE]; and those that come next.
    const uint8_t* source;
    const uint8_t* next_source;
    ptrdiff_t groups;
    void (*bring)(const IntegerPanel& panel, ptrdiff_t group);

    // Fetches from memory what is wanted soon after this group.
    template <ptrdiff_t GROUP_SIZE>
    void fetch_ahead(ptrdiff_t group) const {
        constexpr ptrdiff_t GROUPS = (PREFETCH_BYTES + GROUP_SIZE - 1) / GROUP_SIZE;
        const ptrdiff_t then = group + GROUPS;
        const uint8_t* ahead = then < groups ? source + then * GROUP_SIZE : next_source + (then - groups) * GROUP_SIZE;
        for (ptrdiff_t i = 0; i < GROUP_SIZE; i += static_cast<ptrdiff_t>(sizeof(Line))) __builtin_prefetch(ahead + i);
    }
};

// At most MAX_ROWS rows times some panels: sums [panels][rows][PANEL].
void multiply_panels(ptrdiff_t count, const QuantizedRows& rows, ptrdiff_t num_rows, const IntegerPanel* panels,
                     bool is_first, float* sums);
