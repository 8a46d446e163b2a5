// One token for each row of logits: the largest, or a draw from their softmax, without sorting or copying them.
#include <algorithm>
#include <limits>

#include "elements.h"
#include "threads.h"
#include "vector.h"

namespace {

// Logits whose probabilities are summed together; a draw first finds its block, then its place in there.
constexpr ptrdiff_t BLOCK = 1024;

// NaN if there is one.
template <typename T>
float maximum(const T* logits, ptrdiff_t size) {
    Vector maxima = broadcast(-std::numeric_limits<float>::infinity());
    Integers is_nan = {};
    ptrdiff_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        const Vector values = load(logits + i);
        maxima = values > maxima ? values : maxima;
        is_nan |= values != values;
    }
    float largest = -std::numeric_limits<float>::infinity();
    bool found_nan = false;
    for (int lane = 0; lane < LANES; ++lane) {
        largest = std::max(largest, maxima[lane]);
        found_nan |= is_nan[lane] != 0;
    }
    for (; i < size; ++i) {
        const float logit = to_float(logits[i]);
        largest = std::max(largest, logit);
        found_nan |= logit != logit;
    }
    return found_nan ? std::numeric_limits<float>::quiet_NaN() : largest;
}

// The first place of `value`, or 0.
template <typename T>
ptrdiff_t find(const T* logits, ptrdiff_t size, float value) {
    ptrdiff_t begin = 0;
    for (; begin + BLOCK <= size; begin += BLOCK) {
        Integers is_there = {};
        for (ptrdiff_t i = begin; i < begin + BLOCK; i += LANES) is_there |= load(logits + i) == value;
        bool is_found = false;
        for (int lane = 0; lane < LANES; ++lane) is_found |= is_there[lane] != 0;
        if (is_found) break;
    }
    for (ptrdiff_t i = begin; i < size; ++i)
        if (to_float(logits[i]) == value) return i;
    return 0;
}

// e to the power of (logit - largest) * scale, for up to LANES of them; nothing behind the last.
template <typename T>
Vector weights(const T* logits, ptrdiff_t count, float largest, float scale) {
    Vector values = broadcast(-std::numeric_limits<float>::infinity());
    if (count >= LANES)
        values = load(logits);
    else
        for (ptrdiff_t lane = 0; lane < count; ++lane) values[lane] = to_float(logits[lane]);
    const Vector exponents = (values - largest) * scale;
    // What a mask ruled out has no probability at all; `exponential` would leave it a trace.
    return exponents < -87.0f ? Vector{} : exponential(exponents);
}

template <typename T>
double sum_block(const T* logits, ptrdiff_t count, float largest, float scale) {
    Vector sums = {};
    for (ptrdiff_t i = 0; i < count; i += LANES) sums += weights(logits + i, count - i, largest, scale);
    return sum_lanes(sums);
}

// The token where the sum of the weights before it and its own passes `target`, which is below that of all of them. The
// last one with a weight if rounding leads past it.
template <typename T>
ptrdiff_t place_in_block(const T* logits, ptrdiff_t count, float largest, float scale, double target) {
    ptrdiff_t last = 0;
    double sum = 0;
    for (ptrdiff_t i = 0; i < count; i += LANES) {
        const Vector vector = weights(logits + i, count - i, largest, scale);
        for (ptrdiff_t lane = 0; lane < std::min<ptrdiff_t>(LANES, count - i); ++lane) {
            if (vector[lane] == 0) continue;
            sum += vector[lane];
            last = i + lane;
            if (sum > target) return last;
        }
    }
    return last;
}

template <typename T>
ptrdiff_t draw(const T* logits, ptrdiff_t size, float largest, float scale, double uniform) {
    double sum = 0;
    for (ptrdiff_t i = 0; i < size; i += BLOCK) sum += sum_block(logits + i, std::min(BLOCK, size - i), largest, scale);
    const double target = uniform * sum;
    double before = 0;
    ptrdiff_t last = 0;
    for (ptrdiff_t i = 0; i < size; i += BLOCK) {
        const ptrdiff_t count = std::min(BLOCK, size - i);
        const double block = sum_block(logits + i, count, largest, scale);
        if (block == 0) continue;
        last = i;
        if (before + block > target) break;
        before += block;
    }
    return last + place_in_block(logits + last, std::min(BLOCK, size - last), largest, scale, target - before);
}

template <typename T>
void sample(Range rows, const T* logits, ptrdiff_t stride, ptrdiff_t size, const float* temperatures,
            const double* uniform, int64_t* tokens, bool* is_finite) {
    for (ptrdiff_t r = rows.begin; r < rows.end; ++r) {
        const T* row = logits + r * stride;
        const float largest = maximum(row, size);
        is_finite[r] = largest - largest == 0;
        const bool is_drawn = temperatures[r] > 0 && is_finite[r];
        tokens[r] = is_drawn ? draw(row, size, largest, 1.0f / temperatures[r], uniform[r]) : find(row, size, largest);
    }
}

}  // namespace

extern "C" {

// logits [rows][size] of float32 or bfloat16, `stride` apart. Temperatures [rows]; 0 takes the largest, the first one
// if there are several. uniform [rows]: numbers in [0, 1) -> tokens [rows], and whether the largest logit of each row
// is finite; if not, it gets some token.
void engined_sample(int64_t type, const void* logits, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t size,
                    const float* temperatures, const double* uniform, int64_t* tokens, bool* is_finite) {
    const auto work = [&](const Team& team) {
        const auto run = [&](auto element) {
            sample(team.share(rows), static_cast<const decltype(element)*>(logits), stride, size, temperatures, uniform,
                   tokens, is_finite);
        };
        static_cast<ElementType>(type) == ElementType::FLOAT32 ? run(float{}) : run(BFloat16{});
    };
    if (rows == 1) return work(Team{0, 1, nullptr});
    in_team(work);
}
}
