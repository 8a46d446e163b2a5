#include "elementwise.h"

#include <cmath>

#include "vector.h"

namespace {

// Rows from which on threads are worth their start.
constexpr ptrdiff_t MIN_PARALLEL_ROWS = 16;

template <typename T>
void scale(const T* vector, const T* weight, T* output, ptrdiff_t size, Vector squares, float epsilon) {
    const float factor = 1.0f / std::sqrt(sum_lanes(squares) / static_cast<float>(size) + epsilon);
    for (ptrdiff_t i = 0; i < size; i += LANES) store(output + i, load(vector + i) * factor * load(weight + i));
}

template <typename T>
void add_rms_norm_row(T* stream, const T* values, const T* weight, T* output, ptrdiff_t size, float epsilon) {
    Vector squares = {};
    for (ptrdiff_t i = 0; i < size; i += LANES) {
        if (values != nullptr) store(stream + i, load(stream + i) + load(values + i));
        const Vector sum = load(stream + i);
        squares += sum * sum;
    }
    scale(stream, weight, output, size, squares, epsilon);
}

template <typename T>
void add_rms_norm_rows(Range rows, T* residual, const T* values, const T* weight, T* output, ptrdiff_t size,
                       float epsilon) {
    for (ptrdiff_t r = rows.begin; r < rows.end; ++r)
        add_rms_norm_row(residual + r * size, values == nullptr ? nullptr : values + r * size, weight,
                         output + r * size, size, epsilon);
}

template <typename T>
void normalize_vectors(Range rows, T* vectors, const T* weight, ptrdiff_t heads, ptrdiff_t stride, ptrdiff_t size,
                       float epsilon) {
    for (ptrdiff_t r = rows.begin; r < rows.end; ++r)
        for (ptrdiff_t head = 0; head < heads; ++head) {
            T* vector = vectors + r * stride + head * size;
            Vector squares = {};
            for (ptrdiff_t i = 0; i < size; i += LANES) squares += load(vector + i) * load(vector + i);
            scale(vector, weight, vector, size, squares, epsilon);
        }
}

}  // namespace

void add_rms_norm(const Team& team, ElementType type, void* residual, const void* values, const void* weight,
                  void* output, ptrdiff_t rows, ptrdiff_t size, float epsilon) {
    const auto run = [&](auto element) {
        using T = decltype(element);
        add_rms_norm_rows(team.share(rows), static_cast<T*>(residual), static_cast<const T*>(values),
                          static_cast<const T*>(weight), static_cast<T*>(output), size, epsilon);
    };
    type == ElementType::FLOAT32 ? run(float{}) : run(BFloat16{});
}

void normalize_heads(const Team& team, ElementType type, void* vectors, const void* weight, ptrdiff_t rows,
                     ptrdiff_t heads, ptrdiff_t stride, ptrdiff_t size, float epsilon) {
    const auto run = [&](auto element) {
        using T = decltype(element);
        normalize_vectors(team.share(rows), static_cast<T*>(vectors), static_cast<const T*>(weight), heads, stride,
                          size, epsilon);
    };
    type == ElementType::FLOAT32 ? run(float{}) : run(BFloat16{});
}

extern "C" {

void engined_add_rms_norm(int64_t type, void* residual, const void* values, const void* weight, void* output,
                          ptrdiff_t rows, ptrdiff_t size, float epsilon) {
    const auto work = [&](const Team& team) {
        add_rms_norm(team, static_cast<ElementType>(type), residual, values, weight, output, rows, size, epsilon);
    };
    if (rows < MIN_PARALLEL_ROWS) return work(Team{0, 1, nullptr});
    in_team(work);
}

void engined_normalize_heads(int64_t type, void* vectors, const void* weight, ptrdiff_t rows, ptrdiff_t heads,
                             ptrdiff_t stride, ptrdiff_t size, float epsilon) {
    const auto work = [&](const Team& team) {
        normalize_heads(team, static_cast<ElementType>(type), vectors, weight, rows, heads, stride, size, epsilon);
    };
    if (rows < MIN_PARALLEL_ROWS) return work(Team{0, 1, nullptr});
    in_team(work);
}
}
