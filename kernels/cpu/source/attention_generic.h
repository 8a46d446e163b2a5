// Attention of any types on any machine: everything is widened to floats.
//
// Keys of a block lie as [head_dim][block_size], so that the scores of a whole block are one small product; values as
// [block_size][head_dim]. In an int8 cache the scales of the block's tokens follow, [block_size] floats.
#pragma once

#include "attention_state.h"
#include "tile.h"

template <typename T, typename C>
class GenericAttention {
   public:
    static ptrdiff_t block_bytes(const AttentionShape& shape) {
        return shape.block_size * (shape.head_dim * sizeof(C) + (HAS_SCALES ? sizeof(float) : 0));
    }

    static void write(const AttentionShape& shape, const T* head, char* block, ptrdiff_t offset, bool is_key) {
        C* elements = reinterpret_cast<C*>(block) + (is_key ? offset : offset * shape.head_dim);
        const ptrdiff_t stride = is_key ? shape.block_size : 1;
        if constexpr (HAS_SCALES) {
            std::vector<Int8> quantized(shape.head_dim);
            scales_of(shape, block)[offset] = quantize(head, quantized.data(), shape.head_dim);
            for (ptrdiff_t d = 0; d < shape.head_dim; ++d) elements[d * stride] = quantized[d];
        } else {
            for (ptrdiff_t d = 0; d < shape.head_dim; ++d) from_float(elements + d * stride, to_float(head[d]));
        }
    }

    static size_t scratch_bytes(const AttentionShape& shape, ptrdiff_t rows) {
        return Scratch::bytes<float>(rows * shape.head_dim) + Scratch::bytes<float>(rows * chunk_tokens(shape));
    }

    static float power(float x) { return std::exp(x); }

    GenericAttention(const AttentionShape& shape, const AttentionTask& task, const T* heads, const char* keys,
                     const char* values, Scratch& scratch)
        : shape_(shape), task_(task), keys_(keys), values_(values), rows_(task.tokens * shape.group()) {
        const ptrdiff_t head_dim = shape.head_dim, group = shape.group();
        queries_ = scratch.take<float>(rows_ * head_dim);
        scores_ = scratch.take<float>(rows_ * chunk_tokens(shape));
        for (ptrdiff_t r = 0; r < rows_; ++r) {
            const T* query = heads + (task.row + r / group) * shape.token_size() +
                             (task.kv_head * group + r % group) * head_dim;
            for (ptrdiff_t d = 0; d < head_dim; ++d) queries_[r * head_dim + d] = to_float(query[d]) * shape.scale;
        }
    }

    // What context [begin, end), a piece of the task's, makes of `states`, whatever they were.
    void attend(ptrdiff_t begin, ptrdiff_t end, const RowStates& states, const AttentionTask*) {
        std::fill_n(states.output, rows_ * shape_.head_dim, 0.0f);
        std::fill_n(states.maxima, rows_, LOWEST);
        std::fill_n(states.sums, rows_, 0.0f);
        const ptrdiff_t chunk = chunk_tokens(shape_), block_size = shape_.block_size;
        // Chunks begin at multiples of their size, so that a token lies in the same one for every query.
        for (ptrdiff_t start = begin / chunk * chunk; start < end; start += chunk) {
            // Whole blocks of it; never beyond the last one that the request has.
            const ptrdiff_t length = std::min(chunk, (end - start + block_size - 1) / block_size * block_size);
            // Nor before the first that the task sees: the window has left the others, which may be another request's.
            const ptrdiff_t first = std::max<ptrdiff_t>(0, begin - start) / block_size * block_size;
            score(start, first, length);
            for (ptrdiff_t r = 0; r < rows_; ++r) weigh(r, start, length, begin, end, states);
            add_values(start, first, length, end, states.output);
        }
    }

   private:
    static constexpr bool HAS_SCALES = std::is_same_v<C, Int8>;

    // Cached tokens between two looks at the running maximum, which cost as much as the products of a single block.
    static ptrdiff_t chunk_tokens(const AttentionShape& shape) {
        constexpr ptrdiff_t CHUNK_TOKENS = 64;
        return std::max<ptrdiff_t>(1, CHUNK_TOKENS / shape.block_size) * shape.block_size;
    }

    template <typename Block>
    static auto scales_of(const AttentionShape& shape, Block* block) {
        using Float = std::conditional_t<std::is_const_v<Block>, const float, float>;
        return reinterpret_cast<Float*>(block + shape.block_size * shape.head_dim);
    }

    // Of keys or values, the block that holds the token at `position`.
    const char* block_of(const char* cache, ptrdiff_t position) const {
        return cache + task_.blocks[position / shape_.block_size] * shape_.block_stride +
               task_.kv_head * shape_.head_stride;
    }

    // Multiplies what rows have for the tokens of a block by the tokens' scales.
    void apply_scales(const char* block, float* columns) {
        const float* scales = scales_of(shape_, block);
        for (ptrdiff_t r = 0; r < rows_; ++r)
            for (ptrdiff_t t = 0; t < shape_.block_size; t += LANES) {
                float* target = columns + r * chunk_tokens(shape_) + t;
                store(target, load(target) * load(scales + t));
            }
    }

    void score(ptrdiff_t start, ptrdiff_t first, ptrdiff_t length) {
        const ptrdiff_t chunk = chunk_tokens(shape_), block_size = shape_.block_size, head_dim = shape_.head_dim;
        std::fill_n(scores_, rows_ * chunk, 0.0f);
        for (ptrdiff_t t = first; t < length; t += block_size) {
            const char* block = block_of(keys_, start + t);
            multiply_columns(rows_, queries_, head_dim, reinterpret_cast<const C*>(block), block_size, scores_ + t,
                             chunk, head_dim, block_size);
            if constexpr (HAS_SCALES) apply_scales(block, scores_ + t);
        }
    }

    // Scores of one row become exponentials; sum and output shrink to the new maximum.
    void weigh(ptrdiff_t row, ptrdiff_t start, ptrdiff_t length, ptrdiff_t piece_begin, ptrdiff_t piece_end,
               const RowStates& states) {
        const ptrdiff_t position = task_.position + row / shape_.group();
        const ptrdiff_t begin = std::max<ptrdiff_t>({0, piece_begin - start, shape_.first_visible(position) - start});
        const ptrdiff_t end = std::min({length, piece_end - start, position + 1 - start});
        float* scores = scores_ + row * chunk_tokens(shape_);
        if (begin >= end) {
            std::fill_n(scores, length, 0.0f);
            return;
        }
        Integers lane_index;
        for (int lane = 0; lane < LANES; ++lane) lane_index[lane] = lane;
        const Vector hidden = broadcast(-std::numeric_limits<float>::infinity());
        const float maximum_so_far = states.maxima[row];
        Vector maxima = broadcast(maximum_so_far);
        for (ptrdiff_t t = 0; t < length; t += LANES) {
            const Integers token = lane_index + static_cast<int32_t>(t);
            const Integers is_seen = (token >= static_cast<int32_t>(begin)) & (token < static_cast<int32_t>(end));
            const Vector score = is_seen ? load(scores + t) : hidden;
            store(scores + t, score);
            // A score that is not a number must reach the result, and a comparison would lose it.
            maxima = (score > maxima) | (score != score) ? score : maxima;
        }
        float maximum = maxima[0];
        for (int lane = 1; lane < LANES; ++lane)
            if (maxima[lane] > maximum || maxima[lane] != maxima[lane]) maximum = maxima[lane];
        Vector chunk_sums = {};
        for (ptrdiff_t t = 0; t < length; t += LANES) {
            const Vector score = load(scores + t);
            const Vector weight = score == hidden ? Vector{} : exponential(score - maximum);
            store(scores + t, weight);
            chunk_sums += weight;
        }
        const float shrink = maximum_so_far == maximum ? 1.0f : power(maximum_so_far - maximum);
        states.sums[row] = states.sums[row] * shrink + sum_lanes(chunk_sums);
        states.maxima[row] = maximum;
        float* output = states.output + row * shape_.head_dim;
        if (shrink != 1.0f)
            for (ptrdiff_t d = 0; d < shape_.head_dim; d += LANES) store(output + d, load(output + d) * shrink);
    }

    void add_values(ptrdiff_t start, ptrdiff_t first, ptrdiff_t length, ptrdiff_t end, float* output) {
        const ptrdiff_t chunk = chunk_tokens(shape_), block_size = shape_.block_size, head_dim = shape_.head_dim;
        for (ptrdiff_t t = first; t < length; t += block_size) {
            const char* block = block_of(values_, start + t);
            if constexpr (HAS_SCALES) apply_scales(block, scores_ + t);
            // Never further than the request's own tokens: behind them a stale value may be infinite, and 0 times that
            // is not 0.
            multiply_columns(rows_, scores_ + t, chunk, reinterpret_cast<const C*>(block), head_dim, output, head_dim,
                             std::min(block_size, end - start - t), head_dim);
        }
    }

    const AttentionShape& shape_;
    const AttentionTask& task_;
    const char *keys_, *values_;
    const ptrdiff_t rows_;
    float *queries_, *scores_;
};
