// What a layer does between its products: norms and the gate of the MLP.
#include <cmath>

#include "vector.h"

namespace {

// Rows from which on threads are worth their start.
constexpr ptrdiff_t MIN_PARALLEL_ROWS = 16;

// residual += values; output = residual / rms(residual) * weight. Without values the residual stays as it is.
template <typename T>
void add_rms_norm(T* residual, const T* values, const T* weight, T* output, ptrdiff_t rows, ptrdiff_t size,
                  float epsilon) {
#pragma omp parallel for schedule(static) if (rows >= MIN_PARALLEL_ROWS)
    for (ptrdiff_t r = 0; r < rows; ++r) {
        T* stream = residual + r * size;
        Vector squares = {};
        for (ptrdiff_t i = 0; i < size; i += LANES) {
            if (values != nullptr) store(stream + i, load(stream + i) + load(values + r * size + i));
            const Vector sum = load(stream + i);
            squares += sum * sum;
        }
        const float scale = 1.0f / std::sqrt(sum_lanes(squares) / static_cast<float>(size) + epsilon);
        for (ptrdiff_t i = 0; i < size; i += LANES)
            store(output + r * size + i, load(stream + i) * scale * load(weight + i));
    }
}

// gate_and_up [rows][2 * size] -> silu(gate) * up [rows][size]
template <typename T>
void silu_and_multiply(const T* gate_and_up, T* output, ptrdiff_t rows, ptrdiff_t size) {
#pragma omp parallel for schedule(static) if (rows >= MIN_PARALLEL_ROWS)
    for (ptrdiff_t r = 0; r < rows; ++r) {
        const T* gates = gate_and_up + r * 2 * size;
        for (ptrdiff_t i = 0; i < size; i += LANES) {
            const Vector gate = load(gates + i);
            store(output + r * size + i, gate / (exponential(-gate) + 1.0f) * load(gates + size + i));
        }
    }
}

}  // namespace

#define ENGINED_ELEMENTWISE(SUFFIX, T)                                                                                \
    void engined_add_rms_norm_##SUFFIX(T* residual, const T* values, const T* weight, T* output, ptrdiff_t rows,      \
                                       ptrdiff_t size, float epsilon) {                                               \
        add_rms_norm(residual, values, weight, output, rows, size, epsilon);                                          \
    }                                                                                                                 \
    void engined_silu_and_multiply_##SUFFIX(const T* gate_and_up, T* output, ptrdiff_t rows, ptrdiff_t size) {        \
        silu_and_multiply(gate_and_up, output, rows, size);                                                           \
    }

extern "C" {
ENGINED_ELEMENTWISE(float32, float)
ENGINED_ELEMENTWISE(bfloat16, BFloat16)
}
