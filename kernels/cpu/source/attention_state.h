// What the attention kernels share: the running result of some rows, memory of a thread, and the int8 cache's numbers.
#pragma once

#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>

#include "attention.h"
#include "vector.h"

// Below every score, and finite: the difference of two such is a number.
constexpr float LOWEST = -3e38f;

// What some rows have seen of their context: output is the sum of weight * value, not yet divided by that of weights.
struct RowStates {
    float *maxima, *sums, *output;

    // `memory` holds AttentionPlan::partial_size floats; output may be written to the end.
    RowStates(float* memory, ptrdiff_t rows) : maxima(memory), sums(memory + rows), output(memory + 2 * rows) {}
};

// Adds a later part of the context to `states`. Not inlined: two copies might be rounded differently. `power` belongs
// to the maxima: e or 2 to the power of x.
__attribute__((noinline)) inline void merge(const RowStates& states, const RowStates& later, ptrdiff_t rows,
                                            ptrdiff_t head_dim, float (*power)(float)) {
    for (ptrdiff_t r = 0; r < rows; ++r) {
        const float maximum = std::max(states.maxima[r], later.maxima[r]);
        const float shrink = power(states.maxima[r] - maximum), later_shrink = power(later.maxima[r] - maximum);
        states.maxima[r] = maximum;
        states.sums[r] = states.sums[r] * shrink + later.sums[r] * later_shrink;
        float* output = states.output + r * head_dim;
        const float* later_output = later.output + r * head_dim;
        for (ptrdiff_t d = 0; d < head_dim; d += LANES)
            store(output + d, load(output + d) * shrink + load(later_output + d) * later_shrink);
    }
}

// Memory that a thread keeps from one task to the next.
class Scratch {
   public:
    // At least `bytes`, aligned for every vector, with anything in it.
    void reserve(size_t bytes) {
        used_ = 0;
        if (bytes <= size_) return;
        size_ = (bytes + 63) / 64 * 64;
        memory_.reset(static_cast<char*>(std::aligned_alloc(64, size_)));
    }

    // The next `count` elements.
    template <typename T>
    T* take(ptrdiff_t count) {
        T* taken = reinterpret_cast<T*>(memory_.get() + used_);
        used_ += bytes<T>(count);
        return taken;
    }

    template <typename T>
    static size_t bytes(ptrdiff_t count) {
        return (count * sizeof(T) + 63) / 64 * 64;
    }

   private:
    struct Free {
        void operator()(char* memory) const { std::free(memory); }
    };
    std::unique_ptr<char, Free> memory_;
    size_t size_ = 0, used_ = 0;
};

// An element of the int8 cache. Each token of a KV head has a scale: the largest magnitude becomes 127.
struct Int8 {
    int8_t value;
};

inline Vector load(const Int8* source) {
    typedef int8_t Bytes __attribute__((vector_size(LANES)));
    Bytes bytes;
    std::memcpy(&bytes, source, sizeof(bytes));
    return __builtin_convertvector(bytes, Vector);
}

// source [size] -> target [size]; the scale. What is not finite makes the scale not a number, and so all results.
template <typename T>
inline float quantize(const T* source, Int8* target, ptrdiff_t size) {
    float largest = 0.0f;
    bool is_finite = true;
    for (ptrdiff_t i = 0; i < size; ++i) {
        const float magnitude = std::fabs(to_float(source[i]));
        is_finite = is_finite & (magnitude <= std::numeric_limits<float>::max());
        largest = std::max(largest, magnitude);
    }
    const float inverse = is_finite && largest > 1e-30f ? 127.0f / largest : 0.0f;
    for (ptrdiff_t i = 0; i < size; ++i)
        target[i].value = is_finite ? static_cast<int8_t>(std::lrintf(to_float(source[i]) * inverse)) : 0;
    return is_finite ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
}
