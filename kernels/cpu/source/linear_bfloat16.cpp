// Weights and activations of bfloat16.
#include "bfloat16_products.h"
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

using namespace bfloat16;

// Inputs of the rows that pass together: they stay in the second-level cache while all panels pass.
constexpr ptrdiff_t BLOCK_BYTES = 1 << 20;

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
                const Block block{inputs_of_block + (row - begin) * depth, std::min(MANY_ROWS, end - row), depth,
                                  weights, sums, row == begin};
                multiply_together(count, tiles, block);
                finish(linear, panels, p, count, block, static_cast<uint16_t*>(y) + row * panels.columns);
            }
            p += count;
        }
    }
}

}  // namespace linear_bfloat16

#endif
