// The product that everything here is made of: a few rows times a panel of columns, held in registers.
#pragma once

#include "vector.h"

// c[r, :] += sum over k of a[r, k] * b[k, :], for ROWS rows and VECTORS * LANES columns.
//
// Each element is summed in the order of k, by one chain of multiply-adds. So a row of the result has the same bits
// however many rows are computed with it, and however the depth is cut into calls.
template <int ROWS, int VECTORS, typename B>
inline void multiply_tile(const float* a, ptrdiff_t a_stride, const B* b, ptrdiff_t b_stride, float* c,
                          ptrdiff_t c_stride, ptrdiff_t depth) {
    Vector sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = load(c + r * c_stride + v * LANES);
    for (ptrdiff_t k = 0; k < depth; ++k) {
        Vector columns[VECTORS];
        load_columns(b + k * b_stride, columns);
        for (int r = 0; r < ROWS; ++r) {
            const Vector factor = broadcast(a[r * a_stride + k]);
            for (int v = 0; v < VECTORS; ++v) sums[r][v] += factor * columns[v];
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) store(c + r * c_stride + v * LANES, sums[r][v]);
}

// Rows that fit the registers of AVX2 beside two vectors of columns.
constexpr int TILE_ROWS = 6;

// The same for any number of rows.
template <int VECTORS, typename B>
inline void multiply_rows(ptrdiff_t rows, const float* a, ptrdiff_t a_stride, const B* b, ptrdiff_t b_stride, float* c,
                          ptrdiff_t c_stride, ptrdiff_t depth) {
    for (; rows >= TILE_ROWS; rows -= TILE_ROWS, a += TILE_ROWS * a_stride, c += TILE_ROWS * c_stride)
        multiply_tile<TILE_ROWS, VECTORS>(a, a_stride, b, b_stride, c, c_stride, depth);
    switch (rows) {
        case 5: return multiply_tile<5, VECTORS>(a, a_stride, b, b_stride, c, c_stride, depth);
        case 4: return multiply_tile<4, VECTORS>(a, a_stride, b, b_stride, c, c_stride, depth);
        case 3: return multiply_tile<3, VECTORS>(a, a_stride, b, b_stride, c, c_stride, depth);
        case 2: return multiply_tile<2, VECTORS>(a, a_stride, b, b_stride, c, c_stride, depth);
        case 1: return multiply_tile<1, VECTORS>(a, a_stride, b, b_stride, c, c_stride, depth);
    }
}

// The same for any number of columns that is a multiple of LANES.
template <typename B>
inline void multiply_columns(ptrdiff_t rows, const float* a, ptrdiff_t a_stride, const B* b, ptrdiff_t b_stride,
                             float* c, ptrdiff_t c_stride, ptrdiff_t depth, ptrdiff_t columns) {
    ptrdiff_t column = 0;
    for (; column + 2 * LANES <= columns; column += 2 * LANES)
        multiply_rows<2>(rows, a, a_stride, b + column, b_stride, c + column, c_stride, depth);
    for (; column < columns; column += LANES)
        multiply_rows<1>(rows, a, a_stride, b + column, b_stride, c + column, c_stride, depth);
}
