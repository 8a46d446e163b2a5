// Products of bfloat16 where instructions take pairs of it: with tiles (AMX-BF16) or in vectors (AVX512-BF16). Panels
// have 16 columns, [inputs / 2][16][2], so that 64 bytes hold a pair of inputs for each column, which is what both
// instruction sets multiply at once.
#pragma once

#include <cstring>

#include "amx.h"
#include "vector.h"

#if defined(__AVX512BF16__)

namespace bfloat16 {

constexpr ptrdiff_t PANEL = 16;
// Inputs that one tile of weights holds, 1 KiB: depths are rounded up to it, with zeros.
constexpr ptrdiff_t TILE_DEPTH = 32;
constexpr ptrdiff_t TILE_SIZE = TILE_DEPTH * PANEL;
// Panels that pass together while there are few rows: memory is read in as many streams.
constexpr ptrdiff_t FEW_ROWS_PANELS = 4;
constexpr ptrdiff_t MAX_FEW_ROWS = 16;
// Rows and panels whose sums fit the registers when there are more.
constexpr ptrdiff_t MANY_ROWS = 32, MANY_ROWS_PANELS = 2;
// How far ahead of the product memory is fetched. Measured on an Intel server with AMX, one row on two cores: 38 GB/s
// without it, 43 with 2 KiB; tiles reach 34 and 37, which is why few rows do without them.
constexpr ptrdiff_t PREFETCH_BYTES = 2048;

inline ptrdiff_t padded(ptrdiff_t inputs) { return (inputs + TILE_DEPTH - 1) / TILE_DEPTH * TILE_DEPTH; }

inline void prefetch_tile(const uint16_t* tile) {
    const char* bytes = reinterpret_cast<const char*>(tile) + PREFETCH_BYTES;
    for (ptrdiff_t i = 0; i < TILE_SIZE * 2; i += 64) _mm_prefetch(bytes + i, _MM_HINT_T0);
}

// Some rows, `depth` inputs each, one after the other, and some panels.
struct Block {
    const uint16_t* x;
    ptrdiff_t rows, depth;
    const uint16_t* panels;
    // [panels][rows][PANEL]
    float* sums;
    // Whether the weights come from memory; later rows find them in the cache.
    bool is_first;

    const uint16_t* weights(ptrdiff_t panel, ptrdiff_t k) const { return panels + panel * depth * PANEL + k * PANEL; }
};

#if defined(__AMX_BF16__)

// Row tiles times panels, at most four products.
template <int ROW_TILES, int PANELS>
void multiply_block(const Block& block) {
    const ptrdiff_t x_bytes = block.depth * 2;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (ptrdiff_t k = 0; k < block.depth; k += TILE_DEPTH) {
        if (block.is_first)
            for (int p = 0; p < PANELS; ++p) prefetch_tile(block.weights(p, k));
        _tile_loadd(4, block.x + k, x_bytes);
        _tile_loadd(6, block.weights(0, k), TILE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (PANELS > 1) {
            _tile_loadd(7, block.weights(1, k), TILE_BYTES);
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (PANELS > 2) {
            _tile_loadd(5, block.weights(2, k), TILE_BYTES);
            _tile_dpbf16ps(2, 4, 5);
            _tile_loadd(6, block.weights(3, k), TILE_BYTES);
            _tile_dpbf16ps(3, 4, 6);
        }
        if constexpr (ROW_TILES > 1) {
            _tile_loadd(5, block.x + TILE_HEIGHT * block.depth + k, x_bytes);
            _tile_dpbf16ps(2, 5, 6);
            if constexpr (PANELS > 1) _tile_dpbf16ps(3, 5, 7);
        }
    }
    store_sums<ROW_TILES, PANELS>(block.sums, block.rows * PANEL, TILE_HEIGHT * PANEL);
}

// Rows that registers are faster with than tiles. Measured as above, all products of the default model: one row 6.4 ms,
// two 6.5, four 6.8; with tiles 7.2, 6.9, 6.8.
constexpr ptrdiff_t MAX_REGISTER_ROWS = 2;

// Pairs of bfloat16 as floats, the even ones and the odd ones.
struct FloatPairs {
    __m512 even, odd;

    FloatPairs() = default;
    explicit FloatPairs(__m512i pairs)
        : even(reinterpret<__m512>(_mm512_slli_epi32(pairs, 16))),
          odd(reinterpret<__m512>(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000))))) {}
};

// Products take numbers below 2^-126 for zero as long as this lives, and make none.
class FlushedDenormals {
   public:
    FlushedDenormals() { _mm_setcsr(before_ | FLUSH_RESULTS | FLUSH_FACTORS); }
    ~FlushedDenormals() { _mm_setcsr(before_); }
    FlushedDenormals(const FlushedDenormals&) = delete;
    FlushedDenormals& operator=(const FlushedDenormals&) = delete;

   private:
    static constexpr unsigned FLUSH_RESULTS = 1 << 15, FLUSH_FACTORS = 1 << 6;
    const unsigned before_ = _mm_getcsr();
};

// What tiles compute, bit by bit: the even and the odd inputs of each tile make a chain of multiply-adds each.
template <int ROWS, int PANELS>
void multiply_registers(const Block& block) {
    const FlushedDenormals as_in_tiles;
    __m512 sums[PANELS][ROWS] = {};
    for (ptrdiff_t k = 0; k < block.depth; k += TILE_DEPTH) {
        __m512 even[PANELS][ROWS] = {}, odd[PANELS][ROWS] = {};
        for (ptrdiff_t i = k; i < k + TILE_DEPTH; i += 2) {
            FloatPairs x[ROWS];
            for (int r = 0; r < ROWS; ++r) {
                int32_t pair;
                std::memcpy(&pair, block.x + r * block.depth + i, sizeof(pair));
                x[r] = FloatPairs(_mm512_set1_epi32(pair));
            }
            for (int p = 0; p < PANELS; ++p) {
                const uint16_t* pairs = block.weights(p, i);
                _mm_prefetch(reinterpret_cast<const char*>(pairs) + PREFETCH_BYTES, _MM_HINT_T0);
                const FloatPairs weights(_mm512_loadu_si512(pairs));
                for (int r = 0; r < ROWS; ++r) {
                    even[p][r] = _mm512_fmadd_ps(x[r].even, weights.even, even[p][r]);
                    odd[p][r] = _mm512_fmadd_ps(x[r].odd, weights.odd, odd[p][r]);
                }
            }
        }
        for (int p = 0; p < PANELS; ++p)
            for (int r = 0; r < ROWS; ++r) sums[p][r] += even[p][r] + odd[p][r];
    }
    for (int p = 0; p < PANELS; ++p)
        for (int r = 0; r < ROWS; ++r) _mm512_storeu_ps(block.sums + (p * ROWS + r) * PANEL, sums[p][r]);
}

template <int PANELS>
void multiply_panels(RowTiles& tiles, const Block& block) {
    static_assert(MAX_REGISTER_ROWS == 2);
    if (block.rows == 1) return multiply_registers<1, PANELS>(block);
    if (block.rows == 2) return multiply_registers<2, PANELS>(block);
    tiles.configure(block.rows);
    if (block.rows <= TILE_HEIGHT)
        multiply_block<1, PANELS>(block);
    else if constexpr (PANELS <= MANY_ROWS_PANELS)
        multiply_block<2, PANELS>(block);
}

#else

// Rows whose sums fit the registers beside those of so many panels.
template <int PANELS>
constexpr ptrdiff_t REGISTER_ROWS = PANELS == 1 ? 16 : PANELS == 2 ? 12 : 6;

template <int ROWS, int PANELS>
void multiply_registers(const Block& block, ptrdiff_t first_row) {
    __m512 sums[PANELS][ROWS];
    for (auto& panel : sums)
        for (auto& sum : panel) sum = _mm512_setzero_ps();
    const uint16_t* x = block.x + first_row * block.depth;
    for (ptrdiff_t k = 0; k < block.depth; k += 2) {
        __m512bh weights[PANELS];
        for (int p = 0; p < PANELS; ++p) {
            const uint16_t* pairs = block.weights(p, k);
            _mm_prefetch(reinterpret_cast<const char*>(pairs) + PREFETCH_BYTES, _MM_HINT_T0);
            weights[p] = reinterpret<__m512bh>(_mm512_loadu_si512(pairs));
        }
        for (int r = 0; r < ROWS; ++r) {
            int32_t pair;
            std::memcpy(&pair, x + r * block.depth + k, sizeof(pair));
            const __m512bh factor = reinterpret<__m512bh>(_mm512_set1_epi32(pair));
            for (int p = 0; p < PANELS; ++p) sums[p][r] = _mm512_dpbf16_ps(sums[p][r], factor, weights[p]);
        }
    }
    for (int p = 0; p < PANELS; ++p)
        for (int r = 0; r < ROWS; ++r)
            _mm512_storeu_ps(block.sums + (p * block.rows + first_row + r) * PANEL, sums[p][r]);
}

template <int PANELS, int ROWS>
void multiply_rest(const Block& block, ptrdiff_t first_row) {
    if constexpr (ROWS > 0) {
        if (block.rows - first_row == ROWS)
            multiply_registers<ROWS, PANELS>(block, first_row);
        else
            multiply_rest<PANELS, ROWS - 1>(block, first_row);
    }
}

template <int PANELS>
void multiply_panels(RowTiles&, const Block& block) {
    constexpr ptrdiff_t step = REGISTER_ROWS<PANELS>;
    ptrdiff_t row = 0;
    for (; row + step <= block.rows; row += step) multiply_registers<step, PANELS>(block, row);
    multiply_rest<PANELS, step - 1>(block, row);
}

#endif

// A number of panels that pass together.
inline void multiply_together(ptrdiff_t panels, RowTiles& tiles, const Block& block) {
    switch (panels) {
        case 1: return multiply_panels<1>(tiles, block);
        case 2: return multiply_panels<2>(tiles, block);
        default: return multiply_panels<FEW_ROWS_PANELS>(tiles, block);
    }
}

}  // namespace bfloat16

#endif
