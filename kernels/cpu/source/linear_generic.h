// Products for every machine, in vectors of floats: panels of two vectors of columns, [inputs][PANEL] each.
#pragma once

#include <vector>

#include "linear_formats.h"
#include "tile.h"

namespace generic {

constexpr int PANEL_VECTORS = 2;
constexpr int PANEL = PANEL_VECTORS * LANES;
// A slab of a panel: 16 KiB of floats with AVX2, which stay in the first-level cache while all rows pass.
constexpr ptrdiff_t SLAB_DEPTH = 256;
// Inputs of the rows that pass together: they stay in the second-level cache while all panels pass.
constexpr ptrdiff_t BLOCK_BYTES = 256 << 10;
constexpr ptrdiff_t MAX_BLOCK_ROWS = 96;
// From here on it pays to turn a slab of bfloat16 weights to floats once.
constexpr ptrdiff_t MIN_WIDENED_ROWS = 2 * TILE_ROWS;
// Panels that a single row takes at once: their chains of additions overlap, and memory is read in as many streams.
constexpr int ROW_PANELS = 4;

inline ptrdiff_t block_rows(ptrdiff_t inputs) {
    const ptrdiff_t fitting = BLOCK_BYTES / (inputs * static_cast<ptrdiff_t>(sizeof(float)));
    return std::clamp<ptrdiff_t>(fitting / TILE_ROWS * TILE_ROWS, TILE_ROWS, MAX_BLOCK_ROWS);
}

inline void multiply_slab(ptrdiff_t rows, const float* x, ptrdiff_t inputs, const float* slab, float* sums,
                          ptrdiff_t depth) {
    multiply_rows<PANEL_VECTORS>(rows, x, inputs, slab, PANEL, sums, PANEL, depth);
}

inline void multiply_slab(ptrdiff_t rows, const float* x, ptrdiff_t inputs, const PairedBFloat16* slab, float* sums,
                          ptrdiff_t depth) {
    if (rows < MIN_WIDENED_ROWS) {
        multiply_rows<PANEL_VECTORS>(rows, x, inputs, slab, PANEL, sums, PANEL, depth);
        return;
    }
    alignas(64) float widened[SLAB_DEPTH * PANEL];
    for (ptrdiff_t k = 0; k < depth; ++k) {
        Vector columns[PANEL_VECTORS];
        load_columns(slab + k * PANEL, columns);
        for (int v = 0; v < PANEL_VECTORS; ++v) store(widened + k * PANEL + v * LANES, columns[v]);
    }
    multiply_rows<PANEL_VECTORS>(rows, x, inputs, widened, PANEL, sums, PANEL, depth);
}

// One panel for one block of rows: sums [rows][PANEL].
template <typename W>
void multiply_panel(ptrdiff_t rows, const float* x, ptrdiff_t inputs, const W* panel, float* sums) {
    std::fill(sums, sums + rows * PANEL, 0.0f);
    for (ptrdiff_t k = 0; k < inputs; k += SLAB_DEPTH)
        multiply_slab(rows, x + k, inputs, panel + k * PANEL, sums, std::min(SLAB_DEPTH, inputs - k));
}

// Several panels for a single row: sums [COUNT][PANEL]; the same chains of additions as in `multiply_panel`.
template <int COUNT, typename W>
void multiply_row(const float* x, ptrdiff_t inputs, const W* panels, float* row) {
    Vector sums[COUNT][PANEL_VECTORS] = {};
    for (ptrdiff_t k = 0; k < inputs; ++k) {
        const Vector factor = broadcast(x[k]);
        for (int p = 0; p < COUNT; ++p) {
            Vector weights[PANEL_VECTORS];
            load_columns(panels + (p * inputs + k) * PANEL, weights);
            for (int v = 0; v < PANEL_VECTORS; ++v) sums[p][v] += factor * weights[v];
        }
    }
    for (int p = 0; p < COUNT; ++p)
        for (int v = 0; v < PANEL_VECTORS; ++v) store(row + p * PANEL + v * LANES, sums[p][v]);
}

// Sums of the panels that make one range of columns (one panel, or gate and up), [halves][rows][PANEL], go to y.
template <typename Y>
void finish(const Linear& linear, ptrdiff_t panel, const float* sums, ptrdiff_t rows, Y* y) {
    const Panels panels(linear, PANEL);
    const ptrdiff_t first = panels.first_column(panel), existing = panels.existing(panel);
    const Y* bias = static_cast<const Y*>(linear.bias);
    const auto biased = [&](ptrdiff_t half, ptrdiff_t r, ptrdiff_t c) {
        const float sum = sums[(half * rows + r) * PANEL + c];
        return sum + (bias == nullptr ? 0.0f : to_float(bias[half * panels.columns + first + c]));
    };
    for (ptrdiff_t r = 0; r < rows; ++r)
        for (ptrdiff_t c = 0; c < existing; ++c) {
            const float sum = biased(0, r, c);
            from_float(y + r * panels.columns + first + c, linear.is_gated ? silu(sum) * biased(1, r, c) : sum);
        }
}

inline const float* as_floats(const float* x, ptrdiff_t, std::vector<float>&) { return x; }
inline const float* as_floats(const BFloat16* x, ptrdiff_t count, std::vector<float>& floats) {
    floats.resize(count);
    for (ptrdiff_t i = 0; i < count; ++i) floats[i] = to_float(x[i]);
    return floats.data();
}

template <typename W, typename Y>
void multiply(const Team& team, const Linear& linear, const Y* x, Y* y, ptrdiff_t rows) {
    static thread_local std::vector<float> widened, sums;
    const Panels panels(linear, PANEL);
    const ptrdiff_t inputs = linear.inputs, together = rows == 1 ? ROW_PANELS : panels.halves;
    const Range mine = team.share(panels.count(), together);
    const W* packed = static_cast<const W*>(linear.weight);
    const ptrdiff_t step = block_rows(inputs);
    sums.resize(std::max<ptrdiff_t>(ROW_PANELS, panels.halves * std::min(rows, step)) * PANEL);
    for (ptrdiff_t begin = 0; begin < rows; begin += step) {
        const ptrdiff_t count = std::min(step, rows - begin);
        const float* floats = as_floats(x + begin * inputs, count * inputs, widened);
        Y* target = y + begin * panels.columns;
        for (ptrdiff_t p = mine.begin; p < mine.end;) {
            if (rows == 1 && p + ROW_PANELS <= mine.end) {
                multiply_row<ROW_PANELS>(floats, inputs, packed + p * inputs * PANEL, sums.data());
                for (ptrdiff_t i = 0; i < ROW_PANELS; i += panels.halves)
                    finish(linear, p + i, sums.data() + i * PANEL, 1, target);
                p += ROW_PANELS;
                continue;
            }
            for (ptrdiff_t half = 0; half < panels.halves; ++half)
                multiply_panel(count, floats, inputs, packed + (p + half) * inputs * PANEL,
                               sums.data() + half * count * PANEL);
            finish(linear, p, sums.data(), count, target);
            p += panels.halves;
        }
    }
}

inline ptrdiff_t column_in_memory(float, ptrdiff_t column) { return column; }
inline ptrdiff_t column_in_memory(PairedBFloat16, ptrdiff_t column) { return column % LANES * 2 + column / LANES; }

template <typename W>
void pack(const Team& team, const Linear& linear, const void* weight, void* packed) {
    const Panels panels(linear, PANEL);
    const Range mine = team.share(panels.count());
    for (ptrdiff_t p = mine.begin; p < mine.end; ++p)
        for (ptrdiff_t c = 0; c < PANEL; ++c) {
            W* column = static_cast<W*>(packed) + p * linear.inputs * PANEL + column_in_memory(W{}, c);
            const ptrdiff_t row = panels.weight_row(p, c);
            for (ptrdiff_t k = 0; k < linear.inputs; ++k)
                column[k * PANEL] = row < 0 ? W{} : static_cast<const W*>(weight)[row * linear.inputs + k];
        }
}

template <typename W>
ptrdiff_t packed_bytes(const Linear& linear) {
    return Panels(linear, PANEL).count() * linear.inputs * PANEL * static_cast<ptrdiff_t>(sizeof(W));
}

}  // namespace generic
