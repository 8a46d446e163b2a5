// The products, by what the machine has: tiles of AMX, or instructions that sum four products in each lane of a vector.
#include "integer_products.h"

#include <algorithm>

#include "integer_dot.h"

#if defined(__AMX_INT8__)

namespace {

constexpr ptrdiff_t TILE_SIZE = TILE_HEIGHT * PANEL;

// Adds one step of the rows times one of the panels.
template <int ROW_TILES, int PANELS>
void multiply_step(const RowRange& rows, const IntegerPanel* panels, ptrdiff_t step) {
    const auto weights = [&](int panel) { return panels[panel].weights + step * STEP_BYTES; };
    // GCC 12 does not know that loads of tiles read memory.
    asm volatile("" : : : "memory");
    _tile_loadd(4, rows.values(0, step), TILE_BYTES);
    _tile_loadd(6, weights(0), TILE_BYTES);
    _tile_dpbssd(0, 4, 6);
    if constexpr (PANELS > 1) {
        _tile_loadd(7, weights(1), TILE_BYTES);
        _tile_dpbssd(1, 4, 7);
    }
    if constexpr (PANELS > 2) {
        _tile_loadd(5, weights(2), TILE_BYTES);
        _tile_dpbssd(2, 4, 5);
        _tile_loadd(6, weights(3), TILE_BYTES);
        _tile_dpbssd(3, 4, 6);
    }
    if constexpr (ROW_TILES > 1) {
        _tile_loadd(5, rows.values(TILE_HEIGHT, step), TILE_BYTES);
        _tile_dpbssd(2, 5, 6);
        if constexpr (PANELS > 1) _tile_dpbssd(3, 5, 7);
    }
}

// Adds the integers of a group, [ROW_TILES][PANELS][TILE_SIZE]: sums [PANELS][rows][PANEL].
template <int ROW_TILES, int PANELS, bool IS_FIRST_GROUP>
void add_group(const RowRange& rows, const IntegerPanel* panels, ptrdiff_t group, const int32_t* group_sums,
               float* sums) {
    Vector scales[PANELS];
    for (int p = 0; p < PANELS; ++p) scales[p] = load(panels[p].scales + group * PANEL);
    for (ptrdiff_t r = 0; r < rows.count; ++r) {
        const float scale = rows.scale(r, group);
        const int32_t* source = group_sums + r / TILE_HEIGHT * PANELS * TILE_SIZE + r % TILE_HEIGHT * PANEL;
        for (int p = 0; p < PANELS; ++p) {
            Integers integers;
            std::memcpy(&integers, source + p * TILE_SIZE, sizeof(integers));
            float* target = sums + (p * rows.count + r) * PANEL;
            // Which sums there are is known to the compiler: with a branch it would not always fuse them with products.
            const Vector before = IS_FIRST_GROUP ? Vector{} : load(target);
            store(target, before + __builtin_convertvector(integers, Vector) * (scales[p] * scale));
        }
    }
}

template <int ROW_TILES, int PANELS>
void multiply_some(const RowRange& rows, const IntegerPanel* panels, bool is_first, float* sums) {
    const ptrdiff_t groups = rows.all.groups, group_steps = rows.all.group_steps();
    alignas(64) int32_t group_sums[2][ROW_TILES * PANELS * TILE_SIZE];
    const auto bring = [&](ptrdiff_t step) {
        if (is_first && step < rows.all.steps)
            for (int p = 0; p < PANELS; ++p) panels[p].bring(panels[p], step);
    };
    const auto add = [&](ptrdiff_t group) {
        const int32_t* source = group_sums[group % 2];
        if (group == 0)
            add_group<ROW_TILES, PANELS, true>(rows, panels, group, source, sums);
        else
            add_group<ROW_TILES, PANELS, false>(rows, panels, group, source, sums);
    };
    const ptrdiff_t lead = panels[0].lead;
    for (ptrdiff_t step = 0; step < lead; ++step) bring(step);
    for (ptrdiff_t g = 0; g < groups; ++g) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (ptrdiff_t step = g * group_steps; step < (g + 1) * group_steps; ++step) {
            bring(step + lead);
            multiply_step<ROW_TILES, PANELS>(rows, panels, step);
        }
        store_sums<ROW_TILES, PANELS>(group_sums[g % 2], TILE_SIZE, PANELS * TILE_SIZE);
        // The sums of one group are added while the tiles work on the next.
        if (g > 0) add(g - 1);
    }
    add(groups - 1);
}

}  // namespace

void multiply_panels(RowTiles& tiles, const RowRange& rows, ptrdiff_t count, const IntegerPanel* panels, bool is_first,
                     float* sums) {
    tiles.configure(rows.count);
    for (ptrdiff_t p = 0; p < count;) {
        float* some = sums + p * rows.count * PANEL;
        if (rows.count > TILE_HEIGHT && p + 2 <= count) {
            multiply_some<2, 2>(rows, panels + p, is_first, some);
            p += 2;
        } else if (rows.count > TILE_HEIGHT) {
            multiply_some<2, 1>(rows, panels + p, is_first, some);
            p += 1;
        } else if (p + 4 <= count) {
            multiply_some<1, 4>(rows, panels + p, is_first, some);
            p += 4;
        } else {
            multiply_some<1, 1>(rows, panels + p, is_first, some);
            p += 1;
        }
    }
}

#else

namespace {

constexpr int PANEL_VECTORS = PANEL / LANES;

// ROWS of the rows, from `row` on, times PANELS panels.
template <int ROWS, int PANELS>
void multiply_registers(const RowRange& rows, ptrdiff_t row, const IntegerPanel* panels, bool is_first, float* sums) {
    const ptrdiff_t groups = rows.all.groups, group_steps = rows.all.group_steps();
    for (int part = 0; part < PANEL_VECTORS; ++part) {
        Vector floats[PANELS][ROWS] = {};
        for (ptrdiff_t g = 0; g < groups; ++g) {
            Integers integers[PANELS][ROWS];
            for (int r = 0; r < ROWS; ++r)
                for (int p = 0; p < PANELS; ++p)
                    integers[p][r] = (WEIGHT_BIAS != 0 ? rows.correction(row + r, g) : 0) - Integers{};
            for (ptrdiff_t step = g * group_steps; step < (g + 1) * group_steps; ++step) {
                if (is_first && part == 0)
                    for (int p = 0; p < PANELS; ++p) panels[p].bring(panels[p], step);
                const int8_t* values[ROWS];
                for (int r = 0; r < ROWS; ++r) values[r] = rows.values(row + r, step);
                for (ptrdiff_t k = 0; k < STEP; k += 4) {
                    Integers weights[PANELS];
                    for (int p = 0; p < PANELS; ++p) {
                        const uint8_t* source = panels[p].weights + (step * STEP + k) * PANEL + part * LANES * 4;
                        std::memcpy(&weights[p], source, sizeof(weights[p]));
                    }
                    for (int r = 0; r < ROWS; ++r) {
                        int32_t factors;
                        std::memcpy(&factors, values[r] + k, sizeof(factors));
                        for (int p = 0; p < PANELS; ++p)
                            integers[p][r] = add_products(integers[p][r], weights[p], factors);
                    }
                }
            }
            for (int p = 0; p < PANELS; ++p) {
                const Vector scales = load(panels[p].scales + g * PANEL + part * LANES);
                for (int r = 0; r < ROWS; ++r)
                    floats[p][r] += __builtin_convertvector(integers[p][r], Vector) * (scales * rows.scale(row + r, g));
            }
        }
        for (int p = 0; p < PANELS; ++p)
            for (int r = 0; r < ROWS; ++r)
                store(sums + (p * rows.count + row + r) * PANEL + part * LANES, floats[p][r]);
    }
}

// Sums that the registers hold, beside the floats that they become.
constexpr int REGISTER_SUMS = LANES == 16 ? 12 : 4;

template <int PANELS>
void multiply_some(const RowRange& rows, const IntegerPanel* panels, bool is_first, float* sums) {
    constexpr ptrdiff_t TOGETHER = REGISTER_SUMS / PANELS;
    ptrdiff_t row = 0;
    for (; row + TOGETHER <= rows.count; row += TOGETHER)
        multiply_registers<TOGETHER, PANELS>(rows, row, panels, is_first && row == 0, sums);
    for (; row < rows.count; ++row) multiply_registers<1, PANELS>(rows, row, panels, is_first && row == 0, sums);
}

}  // namespace

void multiply_panels(RowTiles&, const RowRange& rows, ptrdiff_t count, const IntegerPanel* panels, bool is_first,
                     float* sums) {
    const ptrdiff_t together = rows.count <= REGISTER_SUMS / 4 ? 4 : 2;
    ptrdiff_t p = 0;
    for (; p + together <= count; p += together) {
        float* some = sums + p * rows.count * PANEL;
        if (together == 4)
            multiply_some<4>(rows, panels + p, is_first, some);
        else
            multiply_some<2>(rows, panels + p, is_first, some);
    }
    for (; p < count; ++p) multiply_some<1>(rows, panels + p, is_first, sums + p * rows.count * PANEL);
}

#endif
