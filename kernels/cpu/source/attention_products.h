// The two products of attention over groups of 16 tokens, by AMX where there is, else by AVX512-BF16. The two round
// differently, so a build uses one of them for any number of rows. Each element is summed in a fixed order.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "amx.h"

constexpr ptrdiff_t GROUP_TOKENS = 16;
// Cached tokens between two looks at the running maximum.
constexpr ptrdiff_t CHUNK_TOKENS = 128;
constexpr ptrdiff_t CHUNK_GROUPS = CHUNK_TOKENS / GROUP_TOKENS;
// Rows that are multiplied together, at most: those of a tile. Their scores and weights stay in the first-level cache.
constexpr ptrdiff_t BLOCK_ROWS = 16;

// Groups of keys or values that are multiplied together.
struct Groups {
    const char* at[CHUNK_GROUPS];
    ptrdiff_t count = 0;

    void add(const char* group) { at[count++] = group; }
    const uint16_t* elements(ptrdiff_t g) const { return reinterpret_cast<const uint16_t*>(at[g]); }
};

// What will be read after the groups at hand. Products fetch it bit by bit, since the CPU cannot guess random blocks.
class Upcoming {
   public:
    // Groups of `bytes` each; products will call `fetch` as often as they have groups, `num_calls` times in all.
    Upcoming(const Groups& keys, const Groups& values, ptrdiff_t bytes, ptrdiff_t num_calls)
        : bytes_(bytes), step_((2 * keys.count + num_calls - 1) / num_calls) {
        for (ptrdiff_t g = 0; g < keys.count; ++g) {
            at_[count_++] = keys.at[g];
            at_[count_++] = values.at[g];
        }
    }

    void fetch() {
        for (const ptrdiff_t stop = std::min(count_, next_ + step_); next_ < stop; ++next_)
            // Into the second-level cache: 22 GB/s for 32 requests of 1,024 tokens on an Intel server with AMX, against
            // 18 with the first level as target, which has too few requests under way.
            for (ptrdiff_t i = 0; i < bytes_; i += 64) _mm_prefetch(at_[next_] + i, _MM_HINT_T1);
    }

   private:
    const char* at_[2 * CHUNK_GROUPS];
    const ptrdiff_t bytes_, step_;
    ptrdiff_t count_ = 0, next_ = 0;
};

#if defined(__AMX_BF16__)

// Rows of queries, weights, scores and output that must exist; what the last ones hold does not matter.
inline ptrdiff_t padded_rows(ptrdiff_t rows) {
    return rows <= TILE_HEIGHT ? rows : (rows + TILE_HEIGHT - 1) / TILE_HEIGHT * TILE_HEIGHT;
}

// Tiles 0 to 3 sum. Products of 32 dimensions take rows from tile 4 and keys from tile 6; those of 16, dimensions or
// tokens, take rows from tile 5 and keys or values from tile 7.
class Products {
   public:
    Products(ptrdiff_t rows, ptrdiff_t head_dim)
        : head_dim_(head_dim), session_(shapes(std::min(rows, TILE_HEIGHT))) {}

    // queries [rows][head_dim] times groups of keys -> scores [rows][CHUNK_TOKENS]. How many rows the tiles know.
    void score(ptrdiff_t, const uint16_t* queries, const Groups& groups, float* scores, Upcoming& upcoming) const {
        ptrdiff_t g = 0;
        for (; g + 2 <= groups.count; g += 2) score_groups<2>(queries, groups, g, scores, upcoming);
        for (; g < groups.count; ++g) score_groups<1>(queries, groups, g, scores, upcoming);
    }

    // output [rows][head_dim] += weights [rows][CHUNK_TOKENS] times groups of values
    void add_values(ptrdiff_t, const uint16_t* weights, const Groups& groups, float* output,
                    Upcoming& upcoming) const {
        ptrdiff_t d = 0;
        for (; d + 64 <= head_dim_; d += 64) add_dimensions<4>(weights, groups, output, d, upcoming);
        for (; d + 32 <= head_dim_; d += 32) add_dimensions<2>(weights, groups, output, d, upcoming);
        for (; d < head_dim_; d += 16) add_dimensions<1>(weights, groups, output, d, upcoming);
    }

   private:
    static TileShapes shapes(ptrdiff_t rows) {
        TileShapes shapes;
        for (int tile = 0; tile < 5; ++tile) shapes.set(tile, rows);
        shapes.set(5, rows, TILE_BYTES / 2);
        shapes.set(6, TILE_HEIGHT);
        shapes.set(7, TILE_HEIGHT / 2);
        return shapes;
    }

    template <int GROUPS>
    void score_groups(const uint16_t* queries, const Groups& groups, ptrdiff_t first, float* scores,
                      Upcoming& upcoming) const {
        const ptrdiff_t query_bytes = head_dim_ * 2, score_bytes = CHUNK_TOKENS * 4;
        const uint16_t *keys = groups.elements(first), *second = groups.elements(first + GROUPS - 1);
        for (int g = 0; g < GROUPS; ++g) upcoming.fetch();
        _tile_zero(0);
        if constexpr (GROUPS > 1) _tile_zero(1);
        ptrdiff_t d = 0;
        for (; d + 32 <= head_dim_; d += 32) {
            _tile_loadd(4, queries + d, query_bytes);
            _tile_loadd(6, keys + d * GROUP_TOKENS, TILE_BYTES);
            _tile_dpbf16ps(0, 4, 6);
            if constexpr (GROUPS > 1) {
                _tile_loadd(6, second + d * GROUP_TOKENS, TILE_BYTES);
                _tile_dpbf16ps(1, 4, 6);
            }
        }
        if (d < head_dim_) {
            _tile_loadd(5, queries + d, query_bytes);
            _tile_loadd(7, keys + d * GROUP_TOKENS, TILE_BYTES);
            _tile_dpbf16ps(0, 5, 7);
            if constexpr (GROUPS > 1) {
                _tile_loadd(7, second + d * GROUP_TOKENS, TILE_BYTES);
                _tile_dpbf16ps(1, 5, 7);
            }
        }
        scores += first * GROUP_TOKENS;
        _tile_stored(0, scores, score_bytes);
        if constexpr (GROUPS > 1) _tile_stored(1, scores + GROUP_TOKENS, score_bytes);
    }

    // Dimensions `d` to `d + 16 * TILES`.
    template <int TILES>
    void add_dimensions(const uint16_t* weights, const Groups& groups, float* output, ptrdiff_t d,
                        Upcoming& upcoming) const {
        const ptrdiff_t output_bytes = head_dim_ * 4, value_bytes = head_dim_ * 4, weight_bytes = CHUNK_TOKENS * 2;
        output += d;
        _tile_loadd(0, output, output_bytes);
        if constexpr (TILES > 1) _tile_loadd(1, output + 16, output_bytes);
        if constexpr (TILES > 2) _tile_loadd(2, output + 32, output_bytes);
        if constexpr (TILES > 3) _tile_loadd(3, output + 48, output_bytes);
        for (ptrdiff_t g = 0; g < groups.count; ++g) {
            const uint16_t* values = groups.elements(g) + 2 * d;
            upcoming.fetch();
            _tile_loadd(5, weights + g * GROUP_TOKENS, weight_bytes);
            _tile_loadd(7, values, value_bytes);
            _tile_dpbf16ps(0, 5, 7);
            if constexpr (TILES > 1) {
                _tile_loadd(7, values + 32, value_bytes);
                _tile_dpbf16ps(1, 5, 7);
            }
            if constexpr (TILES > 2) {
                _tile_loadd(7, values + 64, value_bytes);
                _tile_dpbf16ps(2, 5, 7);
            }
            if constexpr (TILES > 3) {
                _tile_loadd(7, values + 96, value_bytes);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, output, output_bytes);
        if constexpr (TILES > 1) _tile_stored(1, output + 16, output_bytes);
        if constexpr (TILES > 2) _tile_stored(2, output + 32, output_bytes);
        if constexpr (TILES > 3) _tile_stored(3, output + 48, output_bytes);
    }

    const ptrdiff_t head_dim_;
    const TileSession session_;
};

#else

inline ptrdiff_t padded_rows(ptrdiff_t rows) { return rows; }

inline __m512bh load_pairs(const uint16_t* pairs) { return (__m512bh)_mm512_loadu_si512(pairs); }

inline __m512bh broadcast_pair(const uint16_t* pair) {
    int32_t bits;
    __builtin_memcpy(&bits, pair, sizeof(bits));
    return (__m512bh)_mm512_set1_epi32(bits);
}

// Up to four rows times four vectors of tokens or dimensions in registers.
class Products {
   public:
    Products(ptrdiff_t, ptrdiff_t head_dim) : head_dim_(head_dim) {}

    // queries [rows][head_dim] times groups of keys -> scores [rows][CHUNK_TOKENS]
    void score(ptrdiff_t rows, const uint16_t* queries, const Groups& groups, float* scores,
               Upcoming& upcoming) const {
        ptrdiff_t g = 0;
        for (; g + 4 <= groups.count; g += 4) score_groups<4>(rows, queries, groups, g, scores, upcoming);
        for (; g + 2 <= groups.count; g += 2) score_groups<2>(rows, queries, groups, g, scores, upcoming);
        for (; g < groups.count; ++g) score_groups<1>(rows, queries, groups, g, scores, upcoming);
    }

    // output [rows][head_dim] += weights [rows][CHUNK_TOKENS] times groups of values
    void add_values(ptrdiff_t rows, const uint16_t* weights, const Groups& groups, float* output,
                    Upcoming& upcoming) const {
        ptrdiff_t d = 0;
        for (; d + 64 <= head_dim_; d += 64) add_dimensions<4>(rows, weights, groups, output, d, upcoming);
        for (; d + 32 <= head_dim_; d += 32) add_dimensions<2>(rows, weights, groups, output, d, upcoming);
        for (; d < head_dim_; d += 16) add_dimensions<1>(rows, weights, groups, output, d, upcoming);
    }

   private:
    static constexpr int MAX_ROWS = 4;

    // Calls `work` with (first row, number of rows as a constant) until all rows are done.
    template <typename Work>
    static void in_rows(ptrdiff_t rows, const Work& work) {
        ptrdiff_t r = 0;
        for (; r + MAX_ROWS <= rows; r += MAX_ROWS) work(r, std::integral_constant<int, MAX_ROWS>{});
        switch (rows - r) {
            case 3: return work(r, std::integral_constant<int, 3>{});
            case 2: return work(r, std::integral_constant<int, 2>{});
            case 1: return work(r, std::integral_constant<int, 1>{});
        }
    }

    template <int GROUPS>
    void score_groups(ptrdiff_t rows, const uint16_t* queries, const Groups& groups, ptrdiff_t first_group,
                      float* scores, Upcoming& upcoming) const {
        for (int g = 0; g < GROUPS; ++g) upcoming.fetch();
        scores += first_group * GROUP_TOKENS;
        in_rows(rows, [&](ptrdiff_t first, auto row_count) {
            constexpr int ROWS = row_count;
            __m512 sums[ROWS][GROUPS] = {};
            for (ptrdiff_t d = 0; d < head_dim_; d += 2) {
                __m512bh keys[GROUPS];
                for (int g = 0; g < GROUPS; ++g)
                    keys[g] = load_pairs(groups.elements(first_group + g) + d * GROUP_TOKENS);
                for (int r = 0; r < ROWS; ++r) {
                    const __m512bh query = broadcast_pair(queries + (first + r) * head_dim_ + d);
                    for (int g = 0; g < GROUPS; ++g) sums[r][g] = _mm512_dpbf16_ps(sums[r][g], query, keys[g]);
                }
            }
            for (int r = 0; r < ROWS; ++r)
                for (int g = 0; g < GROUPS; ++g)
                    _mm512_store_ps(scores + (first + r) * CHUNK_TOKENS + g * GROUP_TOKENS, sums[r][g]);
        });
    }

    // Dimensions `d` to `d + 16 * VECTORS`.
    template <int VECTORS>
    void add_dimensions(ptrdiff_t rows, const uint16_t* weights, const Groups& groups, float* output, ptrdiff_t d,
                        Upcoming& upcoming) const {
        in_rows(rows, [&](ptrdiff_t first, auto row_count) {
            constexpr int ROWS = row_count;
            float* target = output + first * head_dim_ + d;
            __m512 sums[ROWS][VECTORS];
            for (int r = 0; r < ROWS; ++r)
                for (int v = 0; v < VECTORS; ++v) sums[r][v] = _mm512_loadu_ps(target + r * head_dim_ + v * 16);
            for (ptrdiff_t t = 0; t < groups.count * GROUP_TOKENS; t += 2) {
                if (t % GROUP_TOKENS == 0) upcoming.fetch();
                const uint16_t* pair = groups.elements(t / GROUP_TOKENS) + t % GROUP_TOKENS * head_dim_ + 2 * d;
                __m512bh values[VECTORS];
                for (int v = 0; v < VECTORS; ++v) values[v] = load_pairs(pair + v * 32);
                for (int r = 0; r < ROWS; ++r) {
                    const __m512bh weight = broadcast_pair(weights + (first + r) * CHUNK_TOKENS + t);
                    for (int v = 0; v < VECTORS; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], weight, values[v]);
                }
            }
            for (int r = 0; r < ROWS; ++r)
                for (int v = 0; v < VECTORS; ++v) _mm512_storeu_ps(target + r * head_dim_ + v * 16, sums[r][v]);
        });
    }

    const ptrdiff_t head_dim_;
};

#endif
