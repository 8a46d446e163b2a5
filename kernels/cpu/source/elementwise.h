// What a layer does between its products: norms.
#pragma once

#include "elements.h"
#include "threads.h"

// residual += values, both [rows][size]; output = residual / rms(residual) * weight. Without values (null) the residual
// stays as it is. My share of the rows.
void add_rms_norm(const Team& team, ElementType type, void* residual, const void* values, const void* weight,
                  void* output, ptrdiff_t rows, ptrdiff_t size, float epsilon);

// Each of `heads` vectors of `size`, `stride` elements from row to row, is scaled in place like that. My share of the
// rows.
void normalize_heads(const Team& team, ElementType type, void* vectors, const void* weight, ptrdiff_t rows,
                     ptrdiff_t heads, ptrdiff_t stride, ptrdiff_t size, float epsilon);
