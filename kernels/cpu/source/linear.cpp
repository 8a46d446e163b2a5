// y = x W^T + bias, with W packed once in panels of a few output columns: [outputs / PANEL][inputs][PANEL].
#include <algorithm>
#include <vector>

#include "tile.h"

namespace {

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

ptrdiff_t block_rows(ptrdiff_t inputs) {
    const ptrdiff_t fitting = BLOCK_BYTES / (inputs * static_cast<ptrdiff_t>(sizeof(float)));
    return std::clamp<ptrdiff_t>(fitting / TILE_ROWS * TILE_ROWS, TILE_ROWS, MAX_BLOCK_ROWS);
}

// Sums [rows][stride] plus bias -> y [rows][outputs], of which the first `columns` are written.
template <typename Y>
inline void finish(const float* sums, ptrdiff_t stride, const Y* bias, Y* y, ptrdiff_t outputs, ptrdiff_t rows,
                   ptrdiff_t columns) {
    for (ptrdiff_t r = 0; r < rows; ++r)
        for (ptrdiff_t c = 0; c < columns; ++c)
            from_float(y + r * outputs + c, sums[r * stride + c] + (bias == nullptr ? 0.0f : to_float(bias[c])));
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

// One panel of outputs for one block of rows.
template <typename W, typename Y>
void multiply_panel(ptrdiff_t rows, const float* x, ptrdiff_t inputs, const W* panel, const Y* bias, Y* y,
                    ptrdiff_t outputs, ptrdiff_t columns) {
    alignas(64) float sums[MAX_BLOCK_ROWS * PANEL];
    std::fill(sums, sums + rows * PANEL, 0.0f);
    for (ptrdiff_t k = 0; k < inputs; k += SLAB_DEPTH)
        multiply_slab(rows, x + k, inputs, panel + k * PANEL, sums, std::min(SLAB_DEPTH, inputs - k));
    finish(sums, PANEL, bias, y, outputs, rows, columns);
}

// Several panels of outputs for a single row; the same chains of additions as in `multiply_panel`.
template <int PANELS, typename W, typename Y>
void multiply_row(const float* x, ptrdiff_t inputs, const W* panels, const Y* bias, Y* y, ptrdiff_t columns) {
    Vector sums[PANELS][PANEL_VECTORS] = {};
    for (ptrdiff_t k = 0; k < inputs; ++k) {
        const Vector factor = broadcast(x[k]);
        for (int p = 0; p < PANELS; ++p) {
            Vector weights[PANEL_VECTORS];
            load_columns(panels + (p * inputs + k) * PANEL, weights);
            for (int v = 0; v < PANEL_VECTORS; ++v) sums[p][v] += factor * weights[v];
        }
    }
    alignas(64) float row[PANELS * PANEL];
    for (int p = 0; p < PANELS; ++p)
        for (int v = 0; v < PANEL_VECTORS; ++v) store(row + p * PANEL + v * LANES, sums[p][v]);
    finish(row, 0, bias, y, 0, 1, columns);
}

template <typename W, typename Y>
void multiply_single(const float* x, const W* packed, const Y* bias, Y* y, ptrdiff_t outputs, ptrdiff_t inputs) {
    const ptrdiff_t panels = (outputs + PANEL - 1) / PANEL;
#pragma omp parallel for schedule(static)
    for (ptrdiff_t p = 0; p < panels; p += ROW_PANELS) {
        const W* weights = packed + p * inputs * PANEL;
        const Y* biases = bias == nullptr ? nullptr : bias + p * PANEL;
        const ptrdiff_t columns = std::min<ptrdiff_t>(ROW_PANELS * PANEL, outputs - p * PANEL);
        if (p + ROW_PANELS <= panels)
            multiply_row<ROW_PANELS>(x, inputs, weights, biases, y + p * PANEL, columns);
        else
            for (ptrdiff_t c = 0; c < columns; c += PANEL)
                multiply_row<1>(x, inputs, weights + c * inputs, biases == nullptr ? nullptr : biases + c,
                                y + p * PANEL + c, std::min<ptrdiff_t>(PANEL, columns - c));
    }
}

template <typename W, typename Y>
void multiply(const float* x, const W* packed, const Y* bias, Y* y, ptrdiff_t rows, ptrdiff_t outputs,
              ptrdiff_t inputs) {
    if (rows == 1) return multiply_single(x, packed, bias, y, outputs, inputs);
    const ptrdiff_t panels = (outputs + PANEL - 1) / PANEL;
    const ptrdiff_t step = block_rows(inputs);
#pragma omp parallel
    for (ptrdiff_t begin = 0; begin < rows; begin += step) {
        const ptrdiff_t count = std::min(step, rows - begin);
#pragma omp for schedule(static) nowait
        for (ptrdiff_t p = 0; p < panels; ++p)
            multiply_panel(count, x + begin * inputs, inputs, packed + p * inputs * PANEL,
                           bias == nullptr ? nullptr : bias + p * PANEL, y + begin * outputs + p * PANEL, outputs,
                           std::min<ptrdiff_t>(PANEL, outputs - p * PANEL));
    }
}

inline ptrdiff_t column_in_memory(float, ptrdiff_t column) { return column; }
inline ptrdiff_t column_in_memory(PairedBFloat16, ptrdiff_t column) { return column % LANES * 2 + column / LANES; }

// weight [outputs][inputs] -> panels; the columns of the last one that have no output are zero.
template <typename W>
void pack(const W* weight, W* packed, ptrdiff_t outputs, ptrdiff_t inputs) {
    const ptrdiff_t panels = (outputs + PANEL - 1) / PANEL;
#pragma omp parallel for schedule(static)
    for (ptrdiff_t p = 0; p < panels; ++p)
        for (ptrdiff_t c = 0; c < PANEL; ++c) {
            W* column = packed + p * inputs * PANEL + column_in_memory(W{}, c);
            const ptrdiff_t output = p * PANEL + c;
            for (ptrdiff_t k = 0; k < inputs; ++k)
                column[k * PANEL] = output < outputs ? weight[output * inputs + k] : W{};
        }
}

}  // namespace

extern "C" {

ptrdiff_t engined_panel() { return PANEL; }

void engined_pack_float32(const float* weight, float* packed, ptrdiff_t outputs, ptrdiff_t inputs) {
    pack(weight, packed, outputs, inputs);
}

void engined_pack_bfloat16(const PairedBFloat16* weight, PairedBFloat16* packed, ptrdiff_t outputs, ptrdiff_t inputs) {
    pack(weight, packed, outputs, inputs);
}

void engined_linear_float32(const float* x, const float* packed, const float* bias, float* y, ptrdiff_t rows,
                            ptrdiff_t outputs, ptrdiff_t inputs) {
    multiply(x, packed, bias, y, rows, outputs, inputs);
}

void engined_linear_bfloat16(const BFloat16* x, const PairedBFloat16* packed, const BFloat16* bias, BFloat16* y,
                             ptrdiff_t rows, ptrdiff_t outputs, ptrdiff_t inputs) {
    std::vector<float> widened(rows * inputs);
    for (ptrdiff_t i = 0; i < rows * inputs; ++i) widened[i] = to_float(x[i]);
    multiply(widened.data(), packed, bias, y, rows, outputs, inputs);
}
}
