// Panels of weights of 4 bits, and the two ways to multiply by them: as weights of 8 bits, into which they are turned
// in the cache, or, with few rows, as they are. Both sum the same integers.
#pragma once

#include <numeric>
#include <vector>

#include "integer_dot.h"
#include "integer_products.h"

namespace int4 {

constexpr ptrdiff_t BLOCKS = STEP / Block::SIZE;
// What `numbers` has of one block: 8 numbers for each column.
constexpr ptrdiff_t WORDS = Block::SIZE / 8;

// One step of each column of a panel. A weight in 8 bits is number * scale + minimum, in bytes: no product needs more.
struct alignas(64) PackedStep {
    uint8_t scales[BLOCKS][PANEL];
    // WEIGHT_BIAS is added.
    uint8_t minimums[BLOCKS][PANEL];
    // Of 8 numbers: the first four in the lower halves of the bytes, the others in the upper ones.
    uint32_t numbers[BLOCKS][WORDS][PANEL];
};

// A column in each lane, as one, two and four numbers.
typedef uint32_t Columns __attribute__((vector_size(LANES * 4)));
typedef uint16_t Pairs __attribute__((vector_size(LANES * 4)));
typedef uint8_t Fours __attribute__((vector_size(LANES * 4)));

inline Columns load_columns(const uint8_t* source) {
    typedef uint8_t Packed __attribute__((vector_size(LANES)));
    Packed bytes;
    std::memcpy(&bytes, source, sizeof(bytes));
#if defined(__AVX512F__)
    // GCC 12 would convert four parts one by one.
    if constexpr (LANES == 16) return reinterpret<Columns>(_mm512_cvtepu8_epi32(reinterpret<__m128i>(bytes)));
#endif
    return __builtin_convertvector(bytes, Columns);
}

// -> weights [STEP / 4][PANEL][4]
inline void unpack_step(const PackedStep& step, uint8_t* weights) {
    for (ptrdiff_t b = 0; b < BLOCKS; ++b)
        for (ptrdiff_t c = 0; c < PANEL; c += LANES) {
            Columns scales = load_columns(step.scales[b] + c), minimums = load_columns(step.minimums[b] + c);
            scales |= scales << 16;
            minimums |= minimums << 8;
            minimums |= minimums << 16;
            const auto weigh = [&](Columns numbers) {
                // Two products at a time: the lower one does not reach the upper.
                const Pairs products = reinterpret<Pairs>(numbers & 0x0f0f0f0f) * reinterpret<Pairs>(scales);
                return reinterpret<Fours>(products) + reinterpret<Fours>(minimums);
            };
            for (ptrdiff_t w = 0; w < WORDS; ++w) {
                Columns numbers;
                std::memcpy(&numbers, step.numbers[b][w] + c, sizeof(numbers));
                const Fours first = weigh(numbers), second = weigh(numbers >> 4);
                uint8_t* target = weights + ((b * WORDS + w) * 2 * PANEL + c) * 4;
                std::memcpy(target, &first, sizeof(first));
                std::memcpy(target + PANEL * 4, &second, sizeof(second));
            }
        }
}

// With more rows it is faster to unpack. Measured on an Intel server with AMX, all products of the default model: one
// row 1.7 ms, two 2.0, three 2.4; unpacked 2.8, 2.9, 3.0. With AVX2 3.7, 5.1, 6.1 and 6.9, 4.3, 6.0.
constexpr ptrdiff_t MAX_PACKED_ROWS = LANES == 16 ? 3 : 1;

// Sums of the values of each row in each block.
class BlockSums {
   public:
    BlockSums(const QuantizedRows& all, ptrdiff_t rows) : steps_(all.steps), sums_(rows * all.steps * BLOCKS) {
        int32_t* sum = sums_.data();
        for (ptrdiff_t r = 0; r < rows; ++r)
            for (ptrdiff_t s = 0; s < steps_; ++s)
                for (const int8_t *values = all.at(r, s), *end = values + STEP; values < end; values += Block::SIZE)
                    *sum++ = std::accumulate(values, values + Block::SIZE, 0);
    }

    int32_t at(ptrdiff_t row, ptrdiff_t step, ptrdiff_t block) const {
        return sums_[(row * steps_ + step) * BLOCKS + block];
    }

   private:
    ptrdiff_t steps_;
    std::vector<int32_t> sums_;
};

// Values of ROWS rows times the numbers of one block, [WORDS][PANEL], in LANES columns.
template <int ROWS>
inline void multiply_block(const int8_t* const (&values)[ROWS], const uint32_t* numbers, Integers (&products)[ROWS]) {
    for (Integers& product : products) product = Integers{};
    for (ptrdiff_t w = 0; w < WORDS; ++w) {
        Integers both;
        std::memcpy(&both, numbers + w * PANEL, sizeof(both));
        const Integers first = both & 0x0f0f0f0f, second = both >> 4 & 0x0f0f0f0f;
        for (int r = 0; r < ROWS; ++r) {
            int32_t factors[2];
            std::memcpy(factors, values[r] + w * 8, sizeof(factors));
            products[r] = add_products(products[r], first, factors[0]);
            products[r] = add_products(products[r], second, factors[1]);
        }
    }
}

inline Integers load_minimums(const uint8_t* source) {
    const Integers bytes = reinterpret<Integers>(load_columns(source));
    return WEIGHT_BIAS == 0 ? bytes << 24 >> 24 : bytes;
}

// All ROWS rows times PANELS panels, LANES columns of each from `column` on: sums [PANELS][ROWS][PANEL].
template <int ROWS, int PANELS>
void multiply_columns(const RowRange& rows, const BlockSums& block_sums, const IntegerPanel* panels, ptrdiff_t column,
                      float* sums) {
    Vector floats[PANELS][ROWS] = {};
    for (ptrdiff_t s = 0; s < rows.all.steps; ++s)
        for (int p = 0; p < PANELS; ++p) {
            if (column == 0) panels[p].fetch_ahead<sizeof(PackedStep)>(s);
            const PackedStep& step = reinterpret_cast<const PackedStep*>(panels[p].source)[s];
            Integers integers[ROWS];
            for (int r = 0; r < ROWS; ++r) integers[r] = (WEIGHT_BIAS != 0 ? rows.correction(r, s) : 0) - Integers{};
            for (ptrdiff_t b = 0; b < BLOCKS; ++b) {
                const int8_t* values[ROWS];
                for (int r = 0; r < ROWS; ++r) values[r] = rows.values(r, s) + b * Block::SIZE;
                Integers products[ROWS];
                multiply_block<ROWS>(values, step.numbers[b][0] + column, products);
                const Integers scales = reinterpret<Integers>(load_columns(step.scales[b] + column));
                const Integers minimums = load_minimums(step.minimums[b] + column);
                for (int r = 0; r < ROWS; ++r)
                    integers[r] += products[r] * scales + minimums * block_sums.at(r, s, b);
            }
            const Vector scales = load(panels[p].scales + s * PANEL + column);
            for (int r = 0; r < ROWS; ++r)
                floats[p][r] += __builtin_convertvector(integers[r], Vector) * (scales * rows.scale(r, s));
        }
    for (int p = 0; p < PANELS; ++p)
        for (int r = 0; r < ROWS; ++r) store(sums + (p * ROWS + r) * PANEL + column, floats[p][r]);
}

template <int ROWS>
void multiply_rows(const RowRange& rows, const BlockSums& block_sums, ptrdiff_t count, const IntegerPanel* panels,
                   float* sums) {
    constexpr int TOGETHER = 2;
    ptrdiff_t p = 0;
    for (; p + TOGETHER <= count; p += TOGETHER)
        for (ptrdiff_t column = 0; column < PANEL; column += LANES)
            multiply_columns<ROWS, TOGETHER>(rows, block_sums, panels + p, column, sums + p * ROWS * PANEL);
    for (; p < count; ++p)
        for (ptrdiff_t column = 0; column < PANEL; column += LANES)
            multiply_columns<ROWS, 1>(rows, block_sums, panels + p, column, sums + p * ROWS * PANEL);
}

// At most MAX_PACKED_ROWS rows times panels that are not unpacked: sums [panels][rows][PANEL].
inline void multiply_packed(const RowRange& rows, const BlockSums& block_sums, ptrdiff_t count,
                            const IntegerPanel* panels, float* sums) {
    static_assert(MAX_PACKED_ROWS <= 3);
    switch (rows.count) {
        case 1: return multiply_rows<1>(rows, block_sums, count, panels, sums);
        case 2: return multiply_rows<2>(rows, block_sums, count, panels, sums);
        default: return multiply_rows<3>(rows, block_sums, count, panels, sums);
    }
}

}  // namespace int4
