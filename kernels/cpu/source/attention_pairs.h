// Attention of bfloat16 over a cache of bfloat16 or int8, by AVX512-BF16 or AMX.
//
// Both multiply pairs of bfloat16 that lie side by side. The cache consists of groups of 16 tokens. Keys of a group lie
// as [head_dim / 2][16][2], 64 bytes for a pair of dimensions of all tokens; values as [8][head_dim][2], 64 bytes for
// 16 dimensions of a pair of tokens. In an int8 cache the elements are bytes, see `widen`, and the scales of the
// group's tokens follow, 16 floats.
#pragma once

#include <immintrin.h>

#include "attention_int8.h"
#include "attention_products.h"
#include "attention_state.h"

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
        const ptrdiff_t padded = padded_rows(rows), block = std::min(padded, BLOCK_ROWS);
        const ptrdiff_t staged = Scratch::bytes<uint16_t>(STAGED_TOKENS * shape.head_dim);
        return Scratch::bytes<uint16_t>(padded * shape.head_dim) + Scratch::bytes<float>(block * CHUNK_TOKENS) +
               Scratch::bytes<uint16_t>(block * CHUNK_TOKENS) + Scratch::bytes<float>(rows * LANES) +
               2 * Scratch::bytes<float>(CHUNK_TOKENS) + 2 * staged;
    }

    static float power(float x) { return std::exp2(x); }

    PairAttention(const AttentionShape& shape, const AttentionTask& task, const BFloat16* heads, const char* keys,
                  const char* values, Scratch& scratch)
        : shape_(shape),
          task_(task),
          keys_(keys),
          values_(values),
          group_(shape.group()),
          rows_(task.tokens * group_),
          // Scores become powers of 2.
          factor_(shape.scale * 1.44269504088896341f),
          products_(rows_, shape.head_dim) {
        const ptrdiff_t padded = padded_rows(rows_), block = std::min(padded, BLOCK_ROWS);
        queries_ = scratch.take<uint16_t>(padded * shape.head_dim);
        scores_ = scratch.take<float>(block * CHUNK_TOKENS);
        weights_ = scratch.take<uint16_t>(block * CHUNK_TOKENS);
        lane_sums_ = scratch.take<float>(rows_ * LANES);
        key_scales_ = scratch.take<float>(CHUNK_TOKENS);
        value_scales_ = scratch.take<float>(CHUNK_TOKENS);
        staged_keys_ = scratch.take<uint16_t>(STAGED_TOKENS * shape.head_dim);
        staged_values_ = scratch.take<uint16_t>(STAGED_TOKENS * shape.head_dim);
        copy_queries(heads);
    }

    // What context [begin, end), a piece of the task's, makes of `states`, whatever they were. `next`: the task that
    // this thread turns to afterwards, or null.
    void attend(ptrdiff_t begin, ptrdiff_t end, const RowStates& states, const AttentionTask* next) {
        std::fill_n(states.output, padded_rows(rows_) * shape_.head_dim, 0.0f);
        std::fill_n(states.maxima, rows_, LOWEST);
        std::fill_n(lane_sums_, rows_ * LANES, 0.0f);
        for (ptrdiff_t start = chunk_of(begin); start < end; start += CHUNK_TOKENS) {
            const Chunk chunk(start, begin, end);
            prepare(chunk);
            Upcoming upcoming = after(chunk, next);
            for (ptrdiff_t row = 0; row < rows_; row += BLOCK_ROWS) {
                const Block block = block_of(chunk, row);
                if (block.chunk.first >= block.chunk.last) continue;
                score(block, upcoming);
                weigh(block, states);
                add_values(block, upcoming, states.output);
            }
        }
        for (ptrdiff_t r = 0; r < rows_; ++r)
            states.sums[r] = _mm512_reduce_add_ps(_mm512_load_ps(lane_sums_ + r * LANES));
    }

   private:
    static constexpr bool HAS_SCALES = std::is_same_v<C, Int8>;
    static constexpr ptrdiff_t MAX_FETCHING_ROWS = 16;
    // Of which keys or values are copied: those of a chunk, or of the request's last group.
    static constexpr ptrdiff_t STAGED_TOKENS = HAS_SCALES ? CHUNK_TOKENS : GROUP_TOKENS;
    // Where the weights of a chunk sum up to more, in a lane of their vectors, the maximum is replaced.
    static constexpr float MAX_LANE_SUM = 256.0f;

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

    // Tokens [begin, end) of the CHUNK_TOKENS from `start`; groups `first` to `last` of these hold them.
    struct Chunk {
        ptrdiff_t start, begin, end, first, last;

        Chunk(ptrdiff_t start, ptrdiff_t context_begin, ptrdiff_t context_end)
            : start(start),
              begin(std::max(start, context_begin)),
              end(std::min(start + CHUNK_TOKENS, context_end)),
              first((begin - start) / GROUP_TOKENS),
              last((end - start + GROUP_TOKENS - 1) / GROUP_TOKENS) {}

        // Weights are computed for pairs of groups.
        ptrdiff_t first_pair() const { return first / 2 * 2; }
        ptrdiff_t last_pair() const { return (last + 1) / 2 * 2; }
    };

    // Up to BLOCK_ROWS rows of the task, and what they see of a chunk.
    struct Block {
        ptrdiff_t row, rows;
        Chunk chunk;
        // Whether every row sees all tokens of the pairs of groups.
        bool is_whole;
    };

    Block block_of(const Chunk& chunk, ptrdiff_t row) const {
        const ptrdiff_t rows = std::min(BLOCK_ROWS, rows_ - row);
        const ptrdiff_t first = position_of(row), last = position_of(row + rows - 1);
        const Chunk seen(chunk.start, chunk.begin, std::min(chunk.end, last + 1));
        const ptrdiff_t begin = std::max(chunk.begin, shape_.first_visible(last)) - chunk.start;
        const ptrdiff_t end = std::min(chunk.end, first + 1) - chunk.start;
        return {row, rows, seen, begin <= seen.first_pair() * GROUP_TOKENS && end >= seen.last_pair() * GROUP_TOKENS};
    }

    // Which tokens of a group a row sees.
    struct SeesAll {
        __mmask16 operator()(ptrdiff_t) const { return 0xffff; }
    };

    // Tokens [begin, end) of the chunk.
    struct SeesSome {
        __m512i begins, count;

        SeesSome(ptrdiff_t begin, ptrdiff_t end)
            : begins(_mm512_sub_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                      _mm512_set1_epi32(static_cast<int>(begin)))),
              count(_mm512_set1_epi32(static_cast<int>(std::max<ptrdiff_t>(0, end - begin)))) {}

        // Tokens before `begin` are negative numbers, which are large ones without a sign.
        __mmask16 operator()(ptrdiff_t group) const {
            const __m512i first = _mm512_set1_epi32(static_cast<int>(group * GROUP_TOKENS));
            return _mm512_cmplt_epu32_mask(_mm512_add_epi32(begins, first), count);
        }
    };

    // Chunks begin at multiples of their size, so that a token lies in the same one for every query.
    static ptrdiff_t chunk_of(ptrdiff_t position) { return position / CHUNK_TOKENS * CHUNK_TOKENS; }

    ptrdiff_t position_of(ptrdiff_t row) const { return task_.position + row / group_; }

    void copy_queries(const BFloat16* heads) {
        const ptrdiff_t head_dim = shape_.head_dim;
        uint16_t* target = queries_;
        const BFloat16* queries = heads + task_.row * shape_.token_size() + task_.kv_head * group_ * head_dim;
        for (ptrdiff_t token = 0; token < task_.tokens; ++token, queries += shape_.token_size())
            for (ptrdiff_t head = 0; head < group_; ++head, target += head_dim) {
                const BFloat16* query = queries + head * head_dim;
                for (ptrdiff_t d = 0; d < head_dim; d += 16)
                    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + d),
                                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(query + d)));
            }
        std::fill(target, queries_ + padded_rows(rows_) * head_dim, uint16_t{0});
    }

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

    void prepare(const Chunk& chunk) {
        key_groups_ = groups_of(keys_, task_, chunk);
        value_groups_ = groups_of(values_, task_, chunk);
        if constexpr (HAS_SCALES) {
            copy_scales(chunk);
            widen_groups(key_groups_, staged_keys_);
            widen_groups(value_groups_, staged_values_);
        } else if (valid_tokens(chunk, chunk.last - 1) < GROUP_TOKENS) {
            const char*& last = value_groups_.at[value_groups_.count - 1];
            last = without_stale(last, valid_tokens(chunk, chunk.last - 1));
        }
    }

    // Puts bfloat16 copies, in `target`, in place of the groups.
    void widen_groups(Groups& groups, uint16_t* target) const {
        const ptrdiff_t size = GROUP_TOKENS * shape_.head_dim;
        for (ptrdiff_t g = 0; g < groups.count; ++g, target += size) {
            widen(reinterpret_cast<const Int8*>(groups.at[g]), target, size);
            groups.at[g] = reinterpret_cast<const char*>(target);
        }
    }

    // Tokens of group `g` of a chunk that belong to the request, beyond 16 if it is full: stale memory is behind them.
    ptrdiff_t valid_tokens(const Chunk& chunk, ptrdiff_t g) const {
        return task_.position + task_.tokens - chunk.start - g * GROUP_TOKENS;
    }

    // Scales of the values are taken for the weights; those of stale tokens are not read.
    void copy_scales(const Chunk& chunk) {
        std::fill_n(value_scales_, CHUNK_TOKENS, 0.0f);
        for (ptrdiff_t g = chunk.first; g < chunk.last; ++g) {
            const ptrdiff_t i = g - chunk.first, at = g * GROUP_TOKENS, valid = valid_tokens(chunk, g);
            const __mmask16 is_valid = static_cast<__mmask16>(valid < GROUP_TOKENS ? (1 << valid) - 1 : 0xffff);
            _mm512_store_ps(key_scales_ + at, _mm512_loadu_ps(scales_of(shape_, key_groups_.at[i])));
            _mm512_store_ps(value_scales_ + at,
                            _mm512_maskz_loadu_ps(is_valid, scales_of(shape_, value_groups_.at[i])));
        }
    }

    void score(const Block& block, Upcoming& upcoming) {
        Groups keys = key_groups_;
        keys.count = block.chunk.last - block.chunk.first;
        products_.score(block.rows, queries_ + block.row * shape_.head_dim, keys,
                        scores_ + block.chunk.first * GROUP_TOKENS, upcoming);
        if constexpr (HAS_SCALES)
            for (ptrdiff_t g = block.chunk.first; g < block.chunk.last; ++g) {
                const __m512 scales = _mm512_load_ps(key_scales_ + g * GROUP_TOKENS);
                for (ptrdiff_t r = 0; r < block.rows; ++r) {
                    float* target = scores_ + r * CHUNK_TOKENS + g * GROUP_TOKENS;
                    _mm512_store_ps(target, _mm512_mul_ps(_mm512_load_ps(target), scales));
                }
            }
    }

    // 2 to the power of x, within 1e-4 of it: a twentieth of what the rounding to bfloat16 costs. 0 for -infinity, and
    // where `kept` has no bit.
    static __m512 power(__m512 x, __mmask16 kept) {
        const __m512 fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
        __m512 mantissa = _mm512_set1_ps(7.8024581e-2f);
        mantissa = _mm512_fmadd_ps(mantissa, fraction, _mm512_set1_ps(2.2606721e-1f));
        mantissa = _mm512_fmadd_ps(mantissa, fraction, _mm512_set1_ps(6.9583344e-1f));
        mantissa = _mm512_fmadd_ps(mantissa, fraction, _mm512_set1_ps(9.9992524e-1f));
        return _mm512_maskz_scalef_ps(kept, mantissa, x);
    }

    // Scores of the block become weights, none where its rows do not see tokens.
    void weigh(const Block& block, const RowStates& states) {
        const ptrdiff_t first = block.chunk.first_pair(), last = block.chunk.last_pair();
        // A constant length lets the compiler unroll the loops.
        if (block.is_whole && last - first == CHUNK_GROUPS)
            weigh_rows(block, 0, CHUNK_GROUPS, [](ptrdiff_t) { return SeesAll(); }, states);
        else
            weigh_rows(block, first, last, [&](ptrdiff_t row) { return seen_by(row, block.chunk); }, states);
    }

    SeesSome seen_by(ptrdiff_t row, const Chunk& chunk) const {
        const ptrdiff_t position = position_of(row);
        return SeesSome(std::max(chunk.begin, shape_.first_visible(position)) - chunk.start,
                        std::min(chunk.end, position + 1) - chunk.start);
    }

    template <typename SeenBy>
    __attribute__((always_inline)) void weigh_rows(const Block& block, ptrdiff_t first, ptrdiff_t last,
                                                   const SeenBy& seen_by, const RowStates& states) {
        float* maxima = states.maxima + block.row;
        // All at once, since each takes long and none waits for another.
        for (ptrdiff_t r = 0; r < block.rows; ++r)
            if (maxima[r] == LOWEST)
                maxima[r] =
                    std::max(LOWEST, greatest(scores_ + r * CHUNK_TOKENS, first, last, seen_by(block.row + r)));
        for (ptrdiff_t r = 0; r < block.rows; ++r) {
            const auto seen = seen_by(block.row + r);
            // Weights need not be below 1, so the maximum may be one of earlier tokens, until they become too large.
            __m512 sums = exponentials(r, first, last, seen, maxima[r]);
            if (_mm512_cmp_ps_mask(sums, _mm512_set1_ps(MAX_LANE_SUM), _CMP_GT_OQ) != 0) [[unlikely]] {
                replace_maximum(block.row + r, greatest(scores_ + r * CHUNK_TOKENS, first, last, seen), states);
                sums = exponentials(r, first, last, seen, maxima[r]);
            }
            float* lane_sums = lane_sums_ + (block.row + r) * LANES;
            _mm512_store_ps(lane_sums, _mm512_add_ps(_mm512_load_ps(lane_sums), sums));
        }
    }

    // Of the scores that are seen, as powers of 2.
    template <typename Seen>
    __attribute__((always_inline)) float greatest(const float* scores, ptrdiff_t first, ptrdiff_t last,
                                                  const Seen& seen) const {
        const __m512 hidden = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
        __m512 maxima = hidden;
        for (ptrdiff_t g = first; g < last; ++g)
            maxima = _mm512_max_ps(maxima, _mm512_mask_load_ps(hidden, seen(g), scores + g * GROUP_TOKENS));
        // A whole number: so it has a part in the exponents of the weights, and none in how they are rounded.
        return std::ceil(factor_ * _mm512_reduce_max_ps(maxima));
    }

    // Weights of row `r` of a block; returns the sums of their lanes.
    template <typename Seen>
    __attribute__((always_inline)) __m512 exponentials(ptrdiff_t r, ptrdiff_t first, ptrdiff_t last, const Seen& seen,
                                                       float maximum) const {
        const float* scores = scores_ + r * CHUNK_TOKENS;
        uint16_t* weights = weights_ + r * CHUNK_TOKENS;
        const __m512 factor = _mm512_set1_ps(factor_), maxima = _mm512_set1_ps(maximum);
        __m512 sums = _mm512_setzero_ps();
        for (ptrdiff_t g = first; g < last; g += 2) {
            const ptrdiff_t at = g * GROUP_TOKENS, next = at + GROUP_TOKENS;
            __m512 lower = power(_mm512_fmsub_ps(_mm512_load_ps(scores + at), factor, maxima), seen(g));
            __m512 upper = power(_mm512_fmsub_ps(_mm512_load_ps(scores + next), factor, maxima), seen(g + 1));
            sums = _mm512_add_ps(sums, _mm512_add_ps(lower, upper));
            if constexpr (HAS_SCALES) {
                lower = _mm512_mul_ps(lower, _mm512_load_ps(value_scales_ + at));
                upper = _mm512_mul_ps(upper, _mm512_load_ps(value_scales_ + next));
            }
            _mm512_store_si512(weights + at, (__m512i)_mm512_cvtne2ps_pbh(upper, lower));
        }
        return sums;
    }

    // Sum and output shrink to the new maximum.
    __attribute__((noinline)) void replace_maximum(ptrdiff_t row, float maximum, const RowStates& states) {
        const __m512 shrink = power(_mm512_set1_ps(states.maxima[row] - maximum), 0xffff);
        states.maxima[row] = maximum;
        float* sums = lane_sums_ + row * LANES;
        _mm512_store_ps(sums, _mm512_mul_ps(_mm512_load_ps(sums), shrink));
        float* output = states.output + row * shape_.head_dim;
        for (ptrdiff_t d = 0; d < shape_.head_dim; d += LANES)
            _mm512_storeu_ps(output + d, _mm512_mul_ps(_mm512_loadu_ps(output + d), shrink));
    }

    // A copy of the last group with zeros behind the request's end: what lies there may be infinite, and 0 times that
    // is not 0.
    const char* without_stale(const char* group, ptrdiff_t valid) const {
        const uint16_t* values = reinterpret_cast<const uint16_t*>(group);
        const ptrdiff_t row = 2 * shape_.head_dim, whole = valid / 2 * row;
        std::copy_n(values, whole, staged_values_);
        std::fill(staged_values_ + whole, staged_values_ + GROUP_TOKENS * shape_.head_dim, uint16_t{0});
        if (valid % 2 == 1)
            for (ptrdiff_t i = whole; i < whole + row; i += 2) staged_values_[i] = values[i];
        return reinterpret_cast<const char*>(staged_values_);
    }

    void add_values(const Block& block, Upcoming& upcoming, float* output) const {
        Groups values = value_groups_;
        values.count = block.chunk.last - block.chunk.first;
        products_.add_values(block.rows, weights_ + block.chunk.first * GROUP_TOKENS, values,
                             output + block.row * shape_.head_dim, upcoming);
    }

    const AttentionShape& shape_;
    const AttentionTask& task_;
    const char *keys_, *values_;
    const ptrdiff_t group_, rows_;
    const float factor_;
    Products products_;
    uint16_t *queries_, *weights_, *staged_keys_, *staged_values_;
    float *scores_, *lane_sums_, *key_scales_, *value_scales_;
    // Of the chunk at hand.
    Groups key_groups_, value_groups_;
};
