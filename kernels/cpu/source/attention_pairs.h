// Attention of bfloat16 over a cache of bfloat16 or int8, by AVX512-BF16 or AMX.
//
// Both multiply pairs of bfloat16 that lie side by side. The cache consists of groups of 16 tokens. Keys of a group lie
// as [head_dim / 2][16][2], 64 bytes for a pair of dimensions of all tokens; values as [8][head_dim][2], 64 bytes for
// 16 dimensions of a pair of tokens. In an int8 cache the elements are bytes, see `widen`, and the scales of the
// group's tokens follow, 16 floats.
#pragma once

#include <immintrin.h>

#include "attention_products.h"
#include "attention_state.h"

// Where element `i` of a group of bfloat16 lies in one of int8, so that `widen` need not move it to another lane.
inline ptrdiff_t int8_index(ptrdiff_t i) { return i / 64 * 64 + i % 32 / 8 * 16 + i % 64 / 32 * 8 + i % 8; }

// Integers up to 127 are exact in bfloat16. source [size] -> target [size], in the order of a group of bfloat16
inline void widen(const Int8* source, uint16_t* target, ptrdiff_t size) {
    struct Table {
        alignas(64) uint8_t high[128], low[128];
        Table() {
            for (int i = 0; i < 128; ++i) {
                const uint32_t bits = reinterpret<uint32_t>(static_cast<float>(i));
                high[i] = static_cast<uint8_t>(bits >> 24);
                low[i] = static_cast<uint8_t>(bits >> 16);
            }
        }
    };
    static const Table table;
    const __m512i high0 = _mm512_load_si512(table.high), high1 = _mm512_load_si512(table.high + 64);
    const __m512i low0 = _mm512_load_si512(table.low), low1 = _mm512_load_si512(table.low + 64);
    const __m512i sign = _mm512_set1_epi8(-128);
    for (ptrdiff_t i = 0; i < size; i += 64) {
        const __m512i bytes = _mm512_loadu_si512(source + i);
        const __m512i magnitude = _mm512_abs_epi8(bytes);
        const __m512i low = _mm512_permutex2var_epi8(low0, magnitude, low1);
        // high | (bytes & sign)
        const __m512i high =
            _mm512_ternarylogic_epi32(_mm512_permutex2var_epi8(high0, magnitude, high1), bytes, sign, 0xf8);
        _mm512_store_si512(target + i, _mm512_unpacklo_epi8(low, high));
        _mm512_store_si512(target + i + 32, _mm512_unpackhi_epi8(low, high));
    }
}

template <typename C>
class PairAttention {
   public:
    static ptrdiff_t block_bytes(const AttentionShape& shape) {
        return shape.block_size / GROUP_TOKENS * group_bytes(shape);
    }

    static void write(const AttentionShape& shape, const BFloat16* head, char* block, ptrdiff_t offset, bool is_key) {
        char* group = block + offset / GROUP_TOKENS * group_bytes(shape);
        const ptrdiff_t token = offset % GROUP_TOKENS;
        if constexpr (HAS_SCALES)
            write_int8(shape, head, group, token, is_key);
        else if (is_key)
            write_key(shape, head, reinterpret_cast<uint32_t*>(group) + token);
        else
            write_value(shape, head, reinterpret_cast<uint16_t*>(group) + token / 2 * 2 * shape.head_dim, token % 2);
    }

    static size_t scratch_bytes(const AttentionShape& shape, ptrdiff_t rows) {
        const ptrdiff_t padded = padded_rows(rows);
        return Scratch::bytes<uint16_t>(padded * shape.head_dim) + Scratch::bytes<float>(padded * CHUNK_TOKENS) +
               Scratch::bytes<uint16_t>(padded * CHUNK_TOKENS) + Scratch::bytes<float>(rows * LANES) +
               Scratch::bytes<uint16_t>((HAS_SCALES ? CHUNK_TOKENS : GROUP_TOKENS) * shape.head_dim);
    }

    static float power(float x) { return std::exp2(x); }

    PairAttention(const AttentionShape& shape, const AttentionTask& task, const BFloat16* heads, const char* keys,
                  const char* values, Scratch& scratch)
        : shape_(shape),
          task_(task),
          keys_(keys),
          values_(values),
          rows_(task.tokens * shape.group()),
          // Scores become powers of 2.
          factor_(shape.scale * 1.44269504088896341f),
          products_(rows_, shape.head_dim) {
        const ptrdiff_t head_dim = shape.head_dim, group = shape.group(), padded = padded_rows(rows_);
        queries_ = scratch.take<uint16_t>(padded * head_dim);
        scores_ = scratch.take<float>(padded * CHUNK_TOKENS);
        weights_ = scratch.take<uint16_t>(padded * CHUNK_TOKENS);
        lane_sums_ = scratch.take<float>(rows_ * LANES);
        staged_ = scratch.take<uint16_t>((HAS_SCALES ? CHUNK_TOKENS : GROUP_TOKENS) * head_dim);
        for (ptrdiff_t r = 0; r < rows_; ++r)
            std::memcpy(queries_ + r * head_dim,
                        heads + (task.row + r / group) * shape.token_size() +
                            (task.kv_head * group + r % group) * head_dim,
                        head_dim * sizeof(uint16_t));
        std::fill(queries_ + rows_ * head_dim, queries_ + padded * head_dim, uint16_t{0});
    }

    // What context [begin, end), a piece of the task's, makes of `states`, whatever they were. `next`: the task that
    // this thread turns to afterwards, or null.
    void attend(ptrdiff_t begin, ptrdiff_t end, const RowStates& states, const AttentionTask* next) {
        std::fill_n(states.output, padded_rows(rows_) * shape_.head_dim, 0.0f);
        std::fill_n(states.maxima, rows_, LOWEST);
        std::fill_n(lane_sums_, rows_ * LANES, 0.0f);
        for (ptrdiff_t start = chunk_of(begin); start < end; start += CHUNK_TOKENS) {
            const Chunk chunk(start, begin, end);
            Upcoming upcoming = after(chunk, next);
            score(chunk, upcoming);
            for (ptrdiff_t token = 0; token < task_.tokens; ++token) weigh_token(token, chunk, begin, end, states);
            add_values(chunk, upcoming, states.output);
        }
        for (ptrdiff_t r = 0; r < rows_; ++r) states.sums[r] = sum_lanes(::load(lane_sums_ + r * LANES));
    }

   private:
    static constexpr bool HAS_SCALES = std::is_same_v<C, Int8>;
    static constexpr ptrdiff_t MAX_FETCHING_ROWS = 16;
    // A maximum may be exceeded so far, in powers of 2, before sums and output shrink to the new one.
    static constexpr float HEADROOM = 8.0f;

    static ptrdiff_t group_bytes(const AttentionShape& shape) {
        return GROUP_TOKENS * (shape.head_dim * sizeof(C) + (HAS_SCALES ? sizeof(float) : 0));
    }

    static void write_key(const AttentionShape& shape, const BFloat16* head, uint32_t* column) {
        for (ptrdiff_t d = 0; d < shape.head_dim; d += 2)
            std::memcpy(column + d / 2 * GROUP_TOKENS, head + d, sizeof(uint32_t));
    }

    // Only the token's own bytes: another thread may write the other token of the pair.
    static void write_value(const AttentionShape& shape, const BFloat16* head, uint16_t* pair, ptrdiff_t parity) {
        const __mmask32 own = parity == 0 ? 0x55555555u : 0xaaaaaaaau;
        for (ptrdiff_t d = 0; d < shape.head_dim; d += 16) {
            const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(head + d));
            const __m512i spread = _mm512_cvtepu16_epi32(values);
            _mm512_mask_storeu_epi16(pair + 2 * d, own, _mm512_or_si512(spread, _mm512_slli_epi32(spread, 16)));
        }
    }

    static void write_int8(const AttentionShape& shape, const BFloat16* head, char* group, ptrdiff_t token,
                           bool is_key) {
        std::vector<Int8> quantized(shape.head_dim);
        Int8* elements = reinterpret_cast<Int8*>(group);
        scales_of(shape, group)[token] = quantize(head, quantized.data(), shape.head_dim);
        for (ptrdiff_t d = 0; d < shape.head_dim; ++d)
            elements[int8_index(is_key ? d / 2 * 2 * GROUP_TOKENS + token * 2 + d % 2
                                       : token / 2 * 2 * shape.head_dim + d * 2 + token % 2)] = quantized[d];
    }

    template <typename Group>
    static auto scales_of(const AttentionShape& shape, Group* group) {
        using Float = std::conditional_t<std::is_const_v<Group>, const float, float>;
        return reinterpret_cast<Float*>(group + GROUP_TOKENS * shape.head_dim);
    }

    // Groups `first` to `last` of the chunk that begins at `start`: those that hold tokens [begin, end).
    struct Chunk {
        ptrdiff_t start, first, last;

        Chunk(ptrdiff_t start, ptrdiff_t begin, ptrdiff_t end)
            : start(start),
              first(std::max<ptrdiff_t>(0, begin - start) / GROUP_TOKENS),
              last((std::min(CHUNK_TOKENS, end - start) + GROUP_TOKENS - 1) / GROUP_TOKENS) {}
    };

    // Chunks begin at multiples of their size, so that a token lies in the same one for every query.
    static ptrdiff_t chunk_of(ptrdiff_t position) { return position / CHUNK_TOKENS * CHUNK_TOKENS; }

    Groups groups_of(const char* cache, const AttentionTask& task, const Chunk& chunk) const {
        Groups groups;
        for (ptrdiff_t g = chunk.first; g < chunk.last; ++g) {
            const ptrdiff_t position = chunk.start + g * GROUP_TOKENS;
            groups.add(cache + task.blocks[position / shape_.block_size] * shape_.block_stride +
                       task.kv_head * shape_.head_stride +
                       position % shape_.block_size / GROUP_TOKENS * group_bytes(shape_));
        }
        return groups;
    }

    // The chunk after `chunk`, of this task or of the next one.
    Upcoming after(const Chunk& chunk, const AttentionTask* next) const {
        const ptrdiff_t start = chunk.start + CHUNK_TOKENS;
        // Many rows belong to a prompt, whose tasks read the same blocks one after the other.
        if (rows_ > MAX_FETCHING_ROWS) return Upcoming({}, {}, 0, 1);
        if (start < task_.end) return upcoming(task_, Chunk(start, start, task_.end), chunk);
        if (next != nullptr) return upcoming(*next, Chunk(chunk_of(next->begin), next->begin, next->end), chunk);
        return Upcoming({}, {}, 0, 1);
    }

    Upcoming upcoming(const AttentionTask& task, const Chunk& chunk, const Chunk& now) const {
        return Upcoming(groups_of(keys_, task, chunk), groups_of(values_, task, chunk), group_bytes(shape_),
                        2 * (now.last - now.first));
    }

    void score(const Chunk& chunk, Upcoming& upcoming) {
        const Groups stored = groups_of(keys_, task_, chunk);
        Groups keys = stored;
        float* scores = scores_ + chunk.first * GROUP_TOKENS;
        if constexpr (HAS_SCALES) keys = widen_groups(stored);
        products_.score(queries_, keys, scores, upcoming);
        if constexpr (HAS_SCALES)
            for (ptrdiff_t g = 0; g < stored.count; ++g) {
                const __m512 scales = _mm512_loadu_ps(scales_of(shape_, stored.at[g]));
                for (ptrdiff_t r = 0; r < rows_; ++r) {
                    float* target = scores + r * CHUNK_TOKENS + g * GROUP_TOKENS;
                    _mm512_store_ps(target, _mm512_mul_ps(_mm512_load_ps(target), scales));
                }
            }
    }

    Groups widen_groups(const Groups& stored) {
        const ptrdiff_t size = GROUP_TOKENS * shape_.head_dim;
        Groups widened;
        for (ptrdiff_t g = 0; g < stored.count; ++g) {
            uint16_t* target = staged_ + g * size;
            widen(reinterpret_cast<const Int8*>(stored.at[g]), target, size);
            widened.add(reinterpret_cast<const char*>(target));
        }
        return widened;
    }

    // 2 to the power of x, within 1e-4 of it: a twentieth of what the rounding to bfloat16 costs. 0 for -infinity.
    static __m512 power(__m512 x) {
        const __m512 fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
        __m512 mantissa = _mm512_set1_ps(7.8024581e-2f);
        mantissa = _mm512_fmadd_ps(mantissa, fraction, _mm512_set1_ps(2.2606721e-1f));
        mantissa = _mm512_fmadd_ps(mantissa, fraction, _mm512_set1_ps(6.9583344e-1f));
        mantissa = _mm512_fmadd_ps(mantissa, fraction, _mm512_set1_ps(9.9992524e-1f));
        return _mm512_scalef_ps(mantissa, x);
    }

    // Scores of one token's rows become weights.
    void weigh_token(ptrdiff_t token, const Chunk& chunk, ptrdiff_t piece_begin, ptrdiff_t piece_end,
                     const RowStates& states) {
        const ptrdiff_t group = shape_.group(), position = task_.position + token;
        const ptrdiff_t begin = std::max(piece_begin, shape_.first_visible(position)) - chunk.start;
        const ptrdiff_t end = std::min(piece_end, position + 1) - chunk.start;
        const bool sees_all = begin <= chunk.first * GROUP_TOKENS && end >= chunk.last * GROUP_TOKENS;
        for (ptrdiff_t row = token * group; row < (token + 1) * group; ++row) {
            float* scores = scores_ + row * CHUNK_TOKENS;
            if (!sees_all) hide(scores, chunk.first, chunk.last, begin, end);
            // A constant length lets the compiler keep a row in registers.
            if (chunk.last - chunk.first == CHUNK_GROUPS)
                weigh(row, 0, CHUNK_GROUPS, states);
            else
                weigh(row, chunk.first, chunk.last, states);
        }
    }

    __attribute__((always_inline)) void weigh(ptrdiff_t row, ptrdiff_t first, ptrdiff_t last, const RowStates& states) {
        float* scores = scores_ + row * CHUNK_TOKENS;
        __m512 maxima = _mm512_load_ps(scores + first * GROUP_TOKENS);
        for (ptrdiff_t g = first + 1; g < last; ++g)
            maxima = _mm512_max_ps(maxima, _mm512_load_ps(scores + g * GROUP_TOKENS));
        const __m512 factor = _mm512_set1_ps(factor_);
        maxima = _mm512_mul_ps(maxima, factor);
        if (_mm512_cmp_ps_mask(maxima, _mm512_set1_ps(states.maxima[row] + HEADROOM), _CMP_GT_OQ) != 0)
            shrink(row, _mm512_reduce_max_ps(maxima), states);
        const __m512 maximum = _mm512_set1_ps(states.maxima[row]);
        __m512 sums = _mm512_load_ps(lane_sums_ + row * LANES);
        uint16_t* weights = weights_ + row * CHUNK_TOKENS;
        for (ptrdiff_t g = first; g < last; ++g) {
            const __m512 score = _mm512_load_ps(scores + g * GROUP_TOKENS);
            const __m512 weight = power(_mm512_fmsub_ps(score, factor, maximum));
            sums = _mm512_add_ps(sums, weight);
            if constexpr (HAS_SCALES)
                _mm512_store_ps(scores + g * GROUP_TOKENS, weight);
            else
                _mm256_store_si256(reinterpret_cast<__m256i*>(weights + g * GROUP_TOKENS),
                                   (__m256i)_mm512_cvtneps_pbh(weight));
        }
        _mm512_store_ps(lane_sums_ + row * LANES, sums);
    }

    // Scores of groups `first` to `last` that lie outside of tokens [begin, end) become -infinity.
    static void hide(float* scores, ptrdiff_t first, ptrdiff_t last, ptrdiff_t begin, ptrdiff_t end) {
        const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        for (ptrdiff_t g = first; g < last; ++g) {
            const __m512i token = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(g * GROUP_TOKENS)));
            const __mmask16 is_hidden = _mm512_cmplt_epi32_mask(token, _mm512_set1_epi32(static_cast<int>(begin))) |
                                        _mm512_cmpge_epi32_mask(token, _mm512_set1_epi32(static_cast<int>(end)));
            _mm512_mask_store_ps(scores + g * GROUP_TOKENS, is_hidden,
                                 _mm512_set1_ps(-std::numeric_limits<float>::infinity()));
        }
    }

    __attribute__((noinline)) void shrink(ptrdiff_t row, float maximum, const RowStates& states) {
        const __m512 shrink = _mm512_set1_ps(power(states.maxima[row] - maximum));
        states.maxima[row] = maximum;
        float* sums = lane_sums_ + row * LANES;
        _mm512_store_ps(sums, _mm512_mul_ps(_mm512_load_ps(sums), shrink));
        float* output = states.output + row * shape_.head_dim;
        for (ptrdiff_t d = 0; d < shape_.head_dim; d += LANES)
            _mm512_storeu_ps(output + d, _mm512_mul_ps(_mm512_loadu_ps(output + d), shrink));
    }

    void add_values(const Chunk& chunk, Upcoming& upcoming, float* output) {
        const Groups stored = groups_of(values_, task_, chunk);
        const ptrdiff_t last = stored.count - 1;
        // Tokens of the last group that belong to the request; beyond 16 if it is full.
        const ptrdiff_t valid = task_.position + task_.tokens - chunk.start - (chunk.last - 1) * GROUP_TOKENS;
        Groups values = stored;
        if constexpr (HAS_SCALES) {
            values = widen_groups(stored);
            for (ptrdiff_t g = 0; g <= last; ++g)
                scale_weights((chunk.first + g) * GROUP_TOKENS, scales_of(shape_, stored.at[g]),
                              g < last ? GROUP_TOKENS : valid);
        } else if (valid < GROUP_TOKENS) {
            values.at[last] = without_stale(stored.at[last], valid);
        }
        products_.add_values(weights_ + chunk.first * GROUP_TOKENS, values, output, upcoming);
    }

    // The weights of a group of an int8 cache take in the scales of its values; those of stale tokens are not read.
    void scale_weights(ptrdiff_t first_token, const float* scales, ptrdiff_t valid) {
        const __mmask16 is_valid = static_cast<__mmask16>(valid < GROUP_TOKENS ? (1 << valid) - 1 : 0xffff);
        const __m512 factors = _mm512_maskz_loadu_ps(is_valid, scales);
        for (ptrdiff_t r = 0; r < rows_; ++r) {
            const ptrdiff_t at = r * CHUNK_TOKENS + first_token;
            const __m512 weight = _mm512_mul_ps(_mm512_load_ps(scores_ + at), factors);
            _mm256_store_si256(reinterpret_cast<__m256i*>(weights_ + at), (__m256i)_mm512_cvtneps_pbh(weight));
        }
    }

    // A copy of the last group with zeros behind the request's end: what lies there may be infinite, and 0 times that
    // is not 0.
    const char* without_stale(const char* group, ptrdiff_t valid) {
        const uint16_t* values = reinterpret_cast<const uint16_t*>(group);
        const ptrdiff_t row = 2 * shape_.head_dim, whole = valid / 2 * row;
        std::copy_n(values, whole, staged_);
        std::fill(staged_ + whole, staged_ + GROUP_TOKENS * shape_.head_dim, uint16_t{0});
        if (valid % 2 == 1)
            for (ptrdiff_t i = whole; i < whole + row; i += 2) staged_[i] = values[i];
        return reinterpret_cast<const char*>(staged_);
    }

    const AttentionShape& shape_;
    const AttentionTask& task_;
    const char *keys_, *values_;
    const ptrdiff_t rows_;
    const float factor_;
    Products products_;
    uint16_t *queries_, *weights_, *staged_;
    float *scores_, *lane_sums_;
};
