// The products, by what the machine has: tiles of AMX, or instructions that sum four products in each lane of a vector.
#include "integer_products.h"

#include <algorithm>

#if defined(__AMX_INT8__)

namespace {

// The rows of one or two tiles times some panels, at most four products. Tiles 0 to 3 sum, those of the second row tile
// from 2 on; 4 holds rows, 5 too where there are two row tiles; the others hold weights.
TileShapes tile_shapes(ptrdiff_t rows) {
    TileShapes shapes;
    const bool is_one = rows <= TILE_HEIGHT;
    const ptrdiff_t first = is_one ? rows : TILE_HEIGHT, second = is_one ? rows : rows - TILE_HEIGHT;
    for (int tile = 0; tile < 4; ++tile) shapes.set(tile, tile < 2 ? first : second);
    shapes.set(4, first);
    shapes.set(5, is_one ? TILE_HEIGHT : second);
    shapes.set(6, TILE_HEIGHT);
    shapes.set(7, TILE_HEIGHT);
    return shapes;
}

constexpr ptrdiff_t TILE_SIZE = TILE_HEIGHT * PANEL;

// One group of the rows, `stride` apart, times one of the panels: sums [ROW_TILES][PANELS][TILE_SIZE].
template <int ROW_TILES, int PANELS>
void multiply_group(const int8_t* values, ptrdiff_t stride, const IntegerPanel* panels, ptrdiff_t group,
                    int32_t* sums) {
    const auto weights = [&](int panel) { return panels[panel].weights + group * GROUP_BYTES; };
    // GCC 12 does not know that loads of tiles read memory.
    asm volatile("" : : : "memory");
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, values, stride);
    _tile_loadd(6, weights(0), TILE_BYTES);
    _tile_dpbssd(0, 4, 6);
    _tile_stored(0, sums, TILE_BYTES);
    if constexpr (PANELS > 1) {
        _tile_loadd(7, weights(1), TILE_BYTES);
        _tile_dpbssd(1, 4, 7);
        _tile_stored(1, sums + TILE_SIZE, TILE_BYTES);
    }
    if constexpr (PANELS > 2) {
        _tile_loadd(5, weights(2), TILE_BYTES);
        _tile_dpbssd(2, 4, 5);
        _tile_stored(2, sums + 2 * TILE_SIZE, TILE_BYTES);
        _tile_loadd(6, weights(3), TILE_BYTES);
        _tile_dpbssd(3, 4, 6);
        _tile_stored(3, sums + 3 * TILE_SIZE, TILE_BYTES);
    }
    if constexpr (ROW_TILES > 1) {
        _tile_loadd(5, values + TILE_HEIGHT * stride, stride);
        _tile_dpbssd(2, 5, 6);
        _tile_stored(2, sums + PANELS * TILE_SIZE, TILE_BYTES);
        if constexpr (PANELS > 1) {
            _tile_dpbssd(3, 5, 7);
            _tile_stored(3, sums + 3 * TILE_SIZE, TILE_BYTES);
        }
    }
}

// Adds what `multiply_group` has made: sums [PANELS][num_rows][PANEL].
template <int ROW_TILES, int PANELS>
void add_group(const QuantizedRows& rows, ptrdiff_t num_rows, const IntegerPanel* panels, ptrdiff_t group,
               const int32_t* group_sums, float* sums) {
    Vector scales[PANELS];
    for (int p = 0; p < PANELS; ++p) scales[p] = load(panels[p].scales + group * PANEL);
    for (ptrdiff_t r = 0; r < num_rows; ++r) {
        const float scale = rows.scales[r * rows.groups + group];
        const int32_t* source = group_sums + r / TILE_HEIGHT * PANELS * TILE_SIZE + r % TILE_HEIGHT * PANEL;
        for (int p = 0; p < PANELS; ++p) {
            Integers integers;
            std::memcpy(&integers, source + p * TILE_SIZE, sizeof(integers));
            float* target = sums + (p * num_rows + r) * PANEL;
            store(target, load(target) + __builtin_convertvector(integers, Vector) * (scales[p] * scale));
        }
    }
}

template <int ROW_TILES, int PANELS>
void multiply_some(const QuantizedRows& rows, ptrdiff_t num_rows, const IntegerPanel* panels, bool is_first,
                   float* sums) {
    const ptrdiff_t groups = rows.groups;
    const TileSession session(tile_shapes(num_rows));
    alignas(64) int32_t group_sums[2][ROW_TILES * PANELS * TILE_SIZE];
    std::fill_n(sums, PANELS * num_rows * PANEL, 0.0f);
    for (ptrdiff_t g = 0; g < groups; ++g) {
        if (is_first)
            for (int p = 0; p < PANELS; ++p) panels[p].bring(panels[p], g);
        multiply_group<ROW_TILES, PANELS>(rows.values + g * GROUP, groups * GROUP, panels, g, group_sums[g % 2]);
        // The sums of one group are added while the tiles work on the next.
        if (g > 0) add_group<ROW_TILES, PANELS>(rows, num_rows, panels, g - 1, group_sums[(g - 1) % 2], sums);
    }
    add_group<ROW_TILES, PANELS>(rows, num_rows, panels, groups - 1, group_sums[(groups - 1) % 2], sums);
}

}  // namespace

void multiply_panels(ptrdiff_t count, const QuantizedRows& rows, ptrdiff_t num_rows, const IntegerPanel* panels,
                     bool is_first, float* sums) {
    for (ptrdiff_t p = 0; p < count;) {
        float* some = sums + p * num_rows * PANEL;
        if (num_rows > TILE_HEIGHT && p + 2 <= count) {
            multiply_some<2, 2>(rows, num_rows, panels + p, is_first, some);
            p += 2;
        } else if (num_rows > TILE_HEIGHT) {
            multiply_some<2, 1>(rows, num_rows, panels + p, is_first, some);
            p += 1;
        } else if (p + 4 <= count) {
            multiply_some<1, 4>(rows, num_rows, panels + p, is_first, some);
            p += 4;
        } else {
            multiply_some<1, 1>(rows, num_rows, panels + p, is_first, some);
            p += 1;
        }
    }
}

#else

namespace {

// LANES columns, 4 inputs each.
typedef int16_t Shorts __attribute__((vector_size(LANES * 4)));

// Adds to each column the product of its 4 weights with 4 values.
Integers add_products(Integers sums, Integers weights, int32_t values) {
#if defined(__AVX512VNNI__)
    if constexpr (LANES == 16)
        return reinterpret<Integers>(_mm512_dpbusd_epi32(reinterpret<__m512i>(sums), reinterpret<__m512i>(weights),
                                                         _mm512_set1_epi32(values)));
#endif
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
    if constexpr (LANES == 8)
        return reinterpret<Integers>(_mm256_dpbusd_epi32(reinterpret<__m256i>(sums), reinterpret<__m256i>(weights),
                                                         _mm256_set1_epi32(values)));
#elif defined(__AVX2__)
    // Sums of two products fit 16 bits, since no factor is below -127.
    if constexpr (LANES == 8) {
        const __m256i signed_weights = reinterpret<__m256i>(weights);
        const __m256i factors = _mm256_sign_epi8(_mm256_set1_epi32(values), signed_weights);
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(signed_weights), factors);
        return sums + reinterpret<Integers>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
#endif
    const Integers factors = values - Integers{};
    const auto even = [](Integers bytes) { return reinterpret<Shorts>(bytes) << 8 >> 8; };
    const auto odd = [](Integers bytes) { return reinterpret<Shorts>(bytes) >> 8; };
    const Shorts pairs = even(weights) * even(factors) + odd(weights) * odd(factors);
    return sums + (reinterpret<Integers>(pairs) << 16 >> 16) + (reinterpret<Integers>(pairs) >> 16);
}

constexpr int PANEL_VECTORS = PANEL / LANES;

// ROWS rows, of `num_rows` whose sums lie together, times PANELS panels.
template <int ROWS, int PANELS>
void multiply_registers(const QuantizedRows& rows, ptrdiff_t num_rows, const IntegerPanel* panels, bool is_first,
                        float* sums) {
    const ptrdiff_t groups = rows.groups, stride = groups * GROUP;
    for (int part = 0; part < PANEL_VECTORS; ++part) {
        Vector floats[PANELS][ROWS] = {};
        for (ptrdiff_t g = 0; g < groups; ++g) {
            if (is_first && part == 0)
                for (int p = 0; p < PANELS; ++p) panels[p].bring(panels[p], g);
            Integers integers[PANELS][ROWS];
            for (int r = 0; r < ROWS; ++r)
                for (int p = 0; p < PANELS; ++p)
                    integers[p][r] = (WEIGHT_BIAS != 0 ? rows.corrections[r * groups + g] : 0) - Integers{};
            const int8_t* values = rows.values + g * GROUP;
            for (ptrdiff_t k = 0; k < GROUP / 4; ++k) {
                Integers weights[PANELS];
                for (int p = 0; p < PANELS; ++p) {
                    const uint8_t* source = panels[p].weights + (g * GROUP + k * 4) * PANEL + part * LANES * 4;
                    std::memcpy(&weights[p], source, sizeof(weights[p]));
                }
                for (int r = 0; r < ROWS; ++r) {
                    int32_t factors;
                    std::memcpy(&factors, values + r * stride + k * 4, sizeof(factors));
                    for (int p = 0; p < PANELS; ++p) integers[p][r] = add_products(integers[p][r], weights[p], factors);
                }
            }
            for (int p = 0; p < PANELS; ++p) {
                const Vector scales = load(panels[p].scales + g * PANEL + part * LANES);
                for (int r = 0; r < ROWS; ++r)
                    floats[p][r] +=
                        __builtin_convertvector(integers[p][r], Vector) * (scales * rows.scales[r * groups + g]);
            }
        }
        for (int p = 0; p < PANELS; ++p)
            for (int r = 0; r < ROWS; ++r) store(sums + (p * num_rows + r) * PANEL + part * LANES, floats[p][r]);
    }
}

// Sums that the registers hold, beside the floats that they become.
constexpr int REGISTER_SUMS = LANES == 16 ? 12 : 4;

// At most MAX_ROWS rows times PANELS panels.
template <int PANELS>
void multiply_some(const QuantizedRows& rows, ptrdiff_t num_rows, const IntegerPanel* panels, bool is_first,
                   float* sums) {
    constexpr ptrdiff_t STEP = REGISTER_SUMS / PANELS;
    ptrdiff_t row = 0;
    for (; row + STEP <= num_rows; row += STEP)
        multiply_registers<STEP, PANELS>(rows.from(row), num_rows, panels, is_first && row == 0, sums + row * PANEL);
    for (; row < num_rows; ++row)
        multiply_registers<1, PANELS>(rows.from(row), num_rows, panels, is_first && row == 0, sums + row * PANEL);
}

}  // namespace

void multiply_panels(ptrdiff_t count, const QuantizedRows& rows, ptrdiff_t num_rows, const IntegerPanel* panels,
                     bool is_first, float* sums) {
    const ptrdiff_t together = num_rows <= REGISTER_SUMS / 4 ? 4 : 2;
    ptrdiff_t p = 0;
    for (; p + together <= count; p += together) {
        float* some = sums + p * num_rows * PANEL;
        if (together == 4)
            multiply_some<4>(rows, num_rows, panels + p, is_first, some);
        else
            multiply_some<2>(rows, num_rows, panels + p, is_first, some);
    }
    for (; p < count; ++p) multiply_some<1>(rows, num_rows, panels + p, is_first, sums + p * num_rows * PANEL);
}

#endif
