// Weights and activations of bfloat16. With AVX512-BF16 or AMX: panels of 16 columns, [inputs / 2][16][2], so that 64
// bytes hold a pair of inputs for each column, which is what both instruction sets multiply at once.
#include "amx.h"
#include "linear_generic.h"

#if !defined(__AVX512BF16__)

namespace linear_bfloat16 {

ptrdiff_t packed_bytes(const Linear& linear) { return generic::packed_bytes<PairedBFloat16>(linear); }

void pack(const Team& team, const Linear& linear, const void* weight, void* packed) {
    generic::pack<PairedBFloat16>(team, linear, weight, packed);
}

void multiply(const Team& team, const Linear& linear, const void* x, void* y, ptrdiff_t rows) {
    generic::multiply<PairedBFloat16>(team, linear, static_cast<const BFloat16*>(x), static_cast<BFloat16*>(y), rows);
}

}  // namespace linear_bfloat16

#else

namespace {

constexpr ptrdiff_t PANEL = 16;
// Inputs that one tile of weights holds, 1 KiB: depths are rounded up to it, with zeros.
constexpr ptrdiff_t TILE_DEPTH = 32;
constexpr ptrdiff_t TILE_SIZE = TILE_DEPTH * PANEL;
// Panels that pass together while there are few rows: memory is read in as many streams.
constexpr ptrdiff_t FEW_ROWS_PANELS = 4;
constexpr ptrdiff_t MAX_FEW_ROWS = 16;
// Rows and panels whose sums fit the registers when there are more.
constexpr ptrdiff_t MANY_ROWS = 32, MANY_ROWS_PANELS = 2;
// Inputs of the rows that pass together: they stay in the second-level cache while all panels pass.
constexpr ptrdiff_t BLOCK_BYTES = 1 << 20;
// How far ahead of the product memory is fetched. Measured on an Intel server with AMX, one row on two cores: 33 GB/s
// without it, 40 with 2 KiB, 33 with 4 KiB.
constexpr ptrdiff_t PREFETCH_BYTES = 2048;

ptrdiff_t padded(ptrdiff_t inputs) { return (inputs + TILE_DEPTH - 1) / TILE_DEPTH * TILE_DEPTH; }

void prefetch_tile(const uint16_t* tile) {
    const char* bytes = reinterpret_cast<const char*>(tile) + PREFETCH_BYTES;
    for (ptrdiff_t i = 0; i < TILE_SIZE * 2; i += 64) _mm_prefetch(bytes + i, _MM_HINT_T0);
}

// Some rows, `depth` inputs each, `stride` apart, and some panels, one after the other.
struct Block {
    const uint16_t* x;
    ptrdiff_t stride, rows, depth;
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
    const ptrdiff_t x_bytes = block.stride * 2;
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
            _tile_loadd(5, block.x + TILE_HEIGHT * block.stride + k, x_bytes);
            _tile_dpbf16ps(2, 5, 6);
            if constexpr (PANELS > 1) _tile_dpbf16ps(3, 5, 7);
        }
    }
    store_sums<ROW_TILES, PANELS>(block.sums, block.rows * PANEL, TILE_HEIGHT * PANEL);
}

template <int PANELS>
void multiply_panels(RowTiles& tiles, const Block& block) {
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
    const uint16_t* x = block.x + first_row * block.stride;
    for (ptrdiff_t k = 0; k < block.depth; k += 2) {
        __m512bh weights[PANELS];
        for (int p = 0; p < PANELS; ++p) {
            const uint16_t* pairs = block.weights(p, k);
            _mm_prefetch(reinterpret_cast<const char*>(pairs) + PREFETCH_BYTES, _MM_HINT_T0);
            weights[p] = reinterpret<__m512bh>(_mm512_loadu_si512(pairs));
        }
        for (int r = 0; r < ROWS; ++r) {
            int32_t pair;
            std::memcpy(&pair, x + r * block.stride + k, sizeof(pair));
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

// 16 sums plus bias, rounded; the first `existing` are written.
void store_columns(__m512 sums, uint16_t* y, ptrdiff_t existing) {
    const __mmask16 mask = static_cast<__mmask16>((1u << existing) - 1);
    _mm256_mask_storeu_epi16(y, mask, reinterpret<__m256i>(_mm512_cvtneps_pbh(sums)));
}

__m512 load_sums(const float* sums, const uint16_t* bias, ptrdiff_t existing) {
    const __m512 loaded = _mm512_loadu_ps(sums);
    if (bias == nullptr) return loaded;
    const __mmask16 mask = static_cast<__mmask16>((1u << existing) - 1);
    const __m512i halves = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, bias));
    return loaded + reinterpret<__m512>(_mm512_slli_epi32(halves, 16));
}

// The sums of `count` panels from `panel` on go to y, whose first row is that of the block.
void finish(const Linear& linear, const Panels& panels, ptrdiff_t panel, ptrdiff_t count, const Block& block,
            uint16_t* y) {
    const uint16_t* bias = static_cast<const uint16_t*>(linear.bias);
    for (ptrdiff_t i = 0; i < count; i += panels.halves) {
        const ptrdiff_t column = panels.first_column(panel + i), existing = panels.existing(panel + i);
        const float* sums = block.sums + i * block.rows * PANEL;
        const uint16_t* biases = bias == nullptr ? nullptr : bias + column;
        for (ptrdiff_t r = 0; r < block.rows; ++r, sums += PANEL) {
            __m512 result = load_sums(sums, biases, existing);
            if (linear.is_gated) {
                const uint16_t* up_biases = biases == nullptr ? nullptr : biases + panels.columns;
                const __m512 up = load_sums(sums + block.rows * PANEL, up_biases, existing);
                result = reinterpret<__m512>(silu(reinterpret<Vector>(result))) * up;
            }
            store_columns(result, y + r * panels.columns + column, existing);
        }
    }
}

void multiply_some(ptrdiff_t panels, RowTiles& tiles, const Block& block) {
    switch (panels) {
        case 1: return multiply_panels<1>(tiles, block);
        case 2: return multiply_panels<2>(tiles, block);
        default: return multiply_panels<FEW_ROWS_PANELS>(tiles, block);
    }
}

// Rows of x with zeros behind their inputs, where the depth is no whole number of tiles.
const uint16_t* pad_rows(const uint16_t* x, ptrdiff_t rows, ptrdiff_t inputs, ptrdiff_t depth) {
    static thread_local std::vector<uint16_t> copy;
    copy.assign(rows * depth, 0);
    for (ptrdiff_t r = 0; r < rows; ++r) std::copy_n(x + r * inputs, inputs, copy.data() + r * depth);
    return copy.data();
}

}  // namespace

namespace linear_bfloat16 {

ptrdiff_t packed_bytes(const Linear& linear) {
    return Panels(linear, PANEL).count() * padded(linear.inputs) * PANEL * 2;
}

void pack(const Team& team, const Linear& linear, const void* weight, void* packed) {
    const Panels panels(linear, PANEL);
    const ptrdiff_t inputs = linear.inputs, depth = padded(inputs);
    const Range mine = team.share(panels.count());
    for (ptrdiff_t p = mine.begin; p < mine.end; ++p) {
        uint16_t* target = static_cast<uint16_t*>(packed) + p * depth * PANEL;
        std::fill_n(target, depth * PANEL, uint16_t{0});
        for (ptrdiff_t c = 0; c < panels.existing(p); ++c) {
            const uint16_t* row = static_cast<const uint16_t*>(weight) + panels.weight_row(p, c) * inputs;
            for (ptrdiff_t k = 0; k < inputs; ++k) target[k / 2 * 2 * PANEL + c * 2 + k % 2] = row[k];
        }
    }
}

void multiply(const Team& team, const Linear& linear, const void* x, void* y, ptrdiff_t rows) {
    const Panels panels(linear, PANEL);
    const ptrdiff_t inputs = linear.inputs, depth = padded(inputs);
    const Range mine = team.share(panels.count(), MANY_ROWS_PANELS);
    const ptrdiff_t block_rows =
        std::max(MANY_ROWS, BLOCK_BYTES / (depth * 2) / MANY_ROWS * MANY_ROWS);
    alignas(64) float sums[MANY_ROWS * MANY_ROWS_PANELS * PANEL];
    static_assert(MAX_FEW_ROWS * FEW_ROWS_PANELS <= MANY_ROWS * MANY_ROWS_PANELS);
    RowTiles tiles;
    const ptrdiff_t together = rows <= MAX_FEW_ROWS ? FEW_ROWS_PANELS : MANY_ROWS_PANELS;
    for (ptrdiff_t begin = 0; begin < rows; begin += block_rows) {
        const ptrdiff_t end = std::min(rows, begin + block_rows);
        const uint16_t* inputs_of_block = static_cast<const uint16_t*>(x) + begin * inputs;
        if (depth != inputs) inputs_of_block = pad_rows(inputs_of_block, end - begin, inputs, depth);
        for (ptrdiff_t p = mine.begin; p < mine.end;) {
            const ptrdiff_t left = mine.end - p;
            const ptrdiff_t count = left >= together ? together : left >= MANY_ROWS_PANELS ? MANY_ROWS_PANELS : 1;
            const uint16_t* weights = static_cast<const uint16_t*>(linear.weight) + p * depth * PANEL;
            for (ptrdiff_t row = begin; row < end; row += MANY_ROWS) {
                const Block block{inputs_of_block + (row - begin) * depth, depth, std::min(MANY_ROWS, end - row),
                                  depth, weights, sums, row == begin};
                multiply_some(count, tiles, block);
                finish(linear, panels, p, count, block, static_cast<uint16_t*>(y) + row * panels.columns);
            }
            p += count;
        }
    }
}

}  // namespace linear_bfloat16

#endif
