// What quantized weights have in common, whatever their bits: how panels of them meet the rows, and where results go.
#pragma once

#include <algorithm>

#include "integer_products.h"
#include "linear_formats.h"

namespace quantized {

// Panels that pass together while there are few rows, and when there are many: then the panels stay in the first-level
// cache while all rows pass.
constexpr ptrdiff_t MAX_PANELS = 4, MANY_ROWS_PANELS = 2;
static_assert(MANY_ROWS_PANELS <= MAX_PANELS);
constexpr ptrdiff_t MAX_FEW_ROWS = 16;
// Bytes of the rows that pass together: they stay in the second-level cache while all panels pass.
constexpr ptrdiff_t BLOCK_BYTES = 1 << 20;

inline ptrdiff_t scale_bytes(ptrdiff_t groups) { return groups * PANEL * static_cast<ptrdiff_t>(sizeof(BFloat16)); }

inline ptrdiff_t whole_lines(ptrdiff_t bytes) {
    constexpr ptrdiff_t LINE = sizeof(Line);
    return (bytes + LINE - 1) / LINE * LINE;
}

inline Vector add_bias(Vector sum, const BFloat16* bias, ptrdiff_t existing) {
    if (bias == nullptr) return sum;
    if (existing >= LANES) return sum + load(bias);
    for (ptrdiff_t lane = 0; lane < existing; ++lane) sum[lane] += to_float(bias[lane]);
    return sum;
}

inline void store_columns(BFloat16* y, Vector result, ptrdiff_t existing) {
    if (existing >= LANES) return store(y, result);
    BFloat16 columns[LANES];
    store(columns, result);
    std::copy_n(columns, existing, y);
}

// Sums of the panels that make one range of columns (one panel, or gate and up), [halves][rows][PANEL], go to y.
inline void finish(const Linear& linear, const Panels& panels, ptrdiff_t panel, const float* sums, ptrdiff_t rows,
                   BFloat16* y) {
    const ptrdiff_t first = panels.first_column(panel), existing = panels.existing(panel);
    const BFloat16* bias = static_cast<const BFloat16*>(linear.bias);
    const BFloat16* biases = bias == nullptr ? nullptr : bias + first;
    const BFloat16* up_biases = bias == nullptr ? nullptr : biases + panels.columns;
    for (ptrdiff_t r = 0; r < rows; ++r)
        for (ptrdiff_t c = 0; c < existing; c += LANES) {
            const auto biased = [&](ptrdiff_t half, const BFloat16* half_biases) {
                const Vector sum = load(sums + (half * rows + r) * PANEL + c);
                return add_bias(sum, half_biases == nullptr ? nullptr : half_biases + c, existing - c);
            };
            Vector result = biased(0, biases);
            if (linear.is_gated) result = silu(result) * biased(1, up_biases);
            store_columns(y + r * panels.columns + first + c, result, existing - c);
        }
}

// `get_panel(p, slot, step)` is the panel p in 8 bits; they may lie in a buffer, of which there are MAX_PANELS slots.
// After it comes the one `step` further on. `multiply_panels` multiplies some of them, as integer_products.h says.
template <typename GetPanel, typename MultiplyPanels>
inline void multiply(const Team& team, const Linear& linear, const QuantizedRows& all, BFloat16* y, ptrdiff_t rows,
                     const GetPanel& get_panel, const MultiplyPanels& multiply_panels) {
    const Panels panels(linear, PANEL);
    const Range mine = team.share(panels.count(), panels.halves);
    const ptrdiff_t block_rows = std::max(MAX_ROWS, BLOCK_BYTES / all.depth() / MAX_ROWS * MAX_ROWS);
    const ptrdiff_t together = rows <= MAX_FEW_ROWS ? MAX_PANELS : MANY_ROWS_PANELS;
    RowTiles tiles;
    alignas(64) float sums[MAX_PANELS * MAX_ROWS * PANEL];
    for (ptrdiff_t begin = 0; begin < rows; begin += block_rows) {
        const ptrdiff_t end = std::min(rows, begin + block_rows);
        for (ptrdiff_t p = mine.begin; p < mine.end; p += together) {
            const ptrdiff_t count = std::min(together, mine.end - p);
            IntegerPanel some[MAX_PANELS];
            for (ptrdiff_t i = 0; i < count; ++i) some[i] = get_panel(p + i, i, together);
            for (ptrdiff_t row = begin; row < end; row += MAX_ROWS) {
                const ptrdiff_t num_rows = std::min(MAX_ROWS, end - row);
                multiply_panels(tiles, RowRange{all, row, num_rows}, count, some, row == begin, sums);
                for (ptrdiff_t i = 0; i < count; i += panels.halves)
                    finish(linear, panels, p + i, sums + i * num_rows * PANEL, num_rows, y + row * panels.columns);
            }
        }
    }
}

}  // namespace quantized
