// The formats behind linear.h, and how they share their panels. Each packs columns of W in panels, one after the other.
#pragma once

#include <algorithm>
#include <cmath>

#include "linear.h"
#include "vector.h"

namespace linear_float {
ptrdiff_t packed_bytes(const Linear& linear);
void pack(const Team& team, const Linear& linear, const void* weight, void* packed);
void multiply(const Team& team, const Linear& linear, const void* x, void* y, ptrdiff_t rows);
}  // namespace linear_float

namespace linear_bfloat16 {
ptrdiff_t packed_bytes(const Linear& linear);
void pack(const Team& team, const Linear& linear, const void* weight, void* packed);
void multiply(const Team& team, const Linear& linear, const void* x, void* y, ptrdiff_t rows);
}  // namespace linear_bfloat16

namespace linear_int8 {
ptrdiff_t packed_bytes(const Linear& linear);
void pack(const Team& team, const Linear& linear, const void* weight, void* packed);
void multiply(const Team& team, const Linear& linear, const void* prepared, void* y, ptrdiff_t rows);
}  // namespace linear_int8

namespace linear_int4 {
ptrdiff_t packed_bytes(const Linear& linear);
void pack(const Team& team, const Linear& linear, const void* blocks, void* packed);
void multiply(const Team& team, const Linear& linear, const void* prepared, void* y, ptrdiff_t rows);
}  // namespace linear_int4

// Panels of `width` columns. Those of a gated weight alternate, gate and up, so that one thread has what belongs
// together.
struct Panels {
    ptrdiff_t width, halves, columns;

    Panels(const Linear& linear, ptrdiff_t width) : width(width), halves(linear.halves()), columns(linear.columns()) {}

    ptrdiff_t count() const { return (columns + width - 1) / width * halves; }
    // First column of y that a panel has to do with, and how many of its columns exist.
    ptrdiff_t first_column(ptrdiff_t panel) const { return panel / halves * width; }
    ptrdiff_t existing(ptrdiff_t panel) const { return std::min(width, columns - first_column(panel)); }
    // Row of W behind column `column` of a panel, or -1 behind the last.
    ptrdiff_t weight_row(ptrdiff_t panel, ptrdiff_t column) const {
        return column < existing(panel) ? panel % halves * columns + first_column(panel) + column : -1;
    }
};

inline float silu(float gate) { return gate / (std::exp(-gate) + 1.0f); }
inline Vector silu(Vector gate) { return gate / (exponential(-gate) + 1.0f); }
