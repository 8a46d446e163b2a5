// Weights of 4 bits, in blocks with a scale and a minimum each. Products take them as 8 bits, into which a few panels at
// a time are turned in the cache: integers again, so that what holds for weights of 8 bits holds for these.
#include <cmath>
#include <vector>

#include "linear_quantized.h"

namespace {

constexpr ptrdiff_t BLOCKS = GROUP / Block::SIZE;
// What `numbers` has of one block: 8 numbers for each column.
constexpr ptrdiff_t NUMBERS_STEPS = Block::SIZE / 8;
// The byte that a weight becomes is the upper half of 16 bits.
constexpr float STEPS = 256.0f;

// One block of each column of a panel.
struct alignas(64) PackedBlock {
    // A weight is number * scale + minimum, in units of 1/256 of the steps of its group; half a step is added.
    struct Factors {
        uint16_t scale, minimum;
    } factors[PANEL];
    // Of 8 numbers; NUMBER_PLACE says which is where.
    uint32_t numbers[NUMBERS_STEPS][PANEL];
};

// Where the bits of 8 numbers stand, in units of 4 bits: so that shifts and masks alone bring two pairs of neighbours,
// after they have been multiplied in 16 bits each, side by side.
constexpr int NUMBER_PLACE[8] = {0, 1, 4, 5, 2, 3, 6, 7};

ptrdiff_t panel_bytes(ptrdiff_t groups) {
    return quantized::whole_lines(groups * BLOCKS * static_cast<ptrdiff_t>(sizeof(PackedBlock)) +
                                  quantized::scale_bytes(groups));
}

// The blocks of a column that make one group -> what is packed of them.
BFloat16 pack_group(const Block* blocks, ptrdiff_t count, PackedBlock* packed, ptrdiff_t column) {
    float largest = 0.0f;
    for (ptrdiff_t b = 0; b < count; ++b) {
        const float scale = from_half(blocks[b].scale), minimum = from_half(blocks[b].minimum);
        for (ptrdiff_t i = 0; i < Block::SIZE; ++i)
            largest = std::max(largest, std::abs(scale * static_cast<float>(blocks[b].number(i)) + minimum));
        if (!std::isfinite(scale) || !std::isfinite(minimum)) largest = NAN;
    }
    const BFloat16 group_scale = scale_reaching(largest);
    const float step = to_float(group_scale);
    const auto in_steps = [&](uint16_t half) {
        return std::isnormal(step) ? static_cast<int32_t>(std::lrint(from_half(half) / step * STEPS)) : 0;
    };
    const int32_t half_a_step = (WEIGHT_BIAS << 8) + 128;
    for (ptrdiff_t b = 0; b < BLOCKS; ++b) {
        const Block block = b < count ? blocks[b] : Block{};
        packed[b].factors[column].scale = static_cast<uint16_t>(in_steps(block.scale));
        packed[b].factors[column].minimum = static_cast<uint16_t>(in_steps(block.minimum) + half_a_step);
        for (ptrdiff_t i = 0; i < Block::SIZE; ++i)
            packed[b].numbers[i / 8][column] |= block.number(i) << 4 * NUMBER_PLACE[i % 8];
    }
    return group_scale;
}

// Vectors of pairs of 16 bits, a pair for each column.
typedef uint16_t Pairs __attribute__((vector_size(LANES * 4)));
typedef uint32_t Columns __attribute__((vector_size(LANES * 4)));

// One block of each column -> weights [Block::SIZE / 4][PANEL][4].
inline void unpack_block(const PackedBlock& block, uint8_t* weights) {
    for (ptrdiff_t c = 0; c < PANEL; c += LANES) {
        Columns factors;
        std::memcpy(&factors, block.factors + c, sizeof(factors));
        const Pairs scales = reinterpret<Pairs>((factors & 0xffff) | factors << 16);
        const Pairs minimums = reinterpret<Pairs>((factors & 0xffff0000) | factors >> 16);
        for (ptrdiff_t i = 0; i < NUMBERS_STEPS; ++i) {
            Pairs numbers;
            std::memcpy(&numbers, block.numbers[i] + c, sizeof(numbers));
            const auto weigh = [&](Pairs number) { return number * scales + minimums; };
            const auto join = [](Pairs low, Pairs high) { return low >> 8 | (high & 0xff00); };
            const Pairs first = join(weigh(numbers & 15), weigh(numbers >> 4 & 15));
            const Pairs second = join(weigh(numbers >> 8 & 15), weigh(numbers >> 12));
            std::memcpy(weights + (i * 2 * PANEL + c) * 4, &first, sizeof(first));
            std::memcpy(weights + ((i * 2 + 1) * PANEL + c) * 4, &second, sizeof(second));
        }
    }
}

void unpack(const IntegerPanel& panel, ptrdiff_t group) {
    constexpr ptrdiff_t GROUP_SIZE = BLOCKS * sizeof(PackedBlock);
    panel.fetch_ahead<GROUP_SIZE>(group);
    const auto* blocks = reinterpret_cast<const PackedBlock*>(panel.source + group * GROUP_SIZE);
    uint8_t* weights = const_cast<uint8_t*>(panel.weights) + group * GROUP_BYTES;
    for (ptrdiff_t b = 0; b < BLOCKS; ++b) unpack_block(blocks[b], weights + b * Block::SIZE * PANEL);
}

}  // namespace

namespace linear_int4 {

ptrdiff_t packed_bytes(const Linear& linear) {
    return Panels(linear, PANEL).count() * panel_bytes(groups_of(linear.inputs));
}

void pack(const Team& team, const Linear& linear, const void* blocks, void* packed) {
    const Panels panels(linear, PANEL);
    const ptrdiff_t count = blocks_of(linear.inputs), groups = groups_of(linear.inputs);
    const Range mine = team.share(panels.count());
    for (ptrdiff_t p = mine.begin; p < mine.end; ++p) {
        uint8_t* panel = static_cast<uint8_t*>(packed) + p * panel_bytes(groups);
        PackedBlock* packed_blocks = reinterpret_cast<PackedBlock*>(panel);
        BFloat16* scales = reinterpret_cast<BFloat16*>(packed_blocks + groups * BLOCKS);
        std::memset(panel, 0, panel_bytes(groups));
        for (ptrdiff_t c = 0; c < panels.existing(p); ++c) {
            const Block* row = static_cast<const Block*>(blocks) + panels.weight_row(p, c) * count;
            for (ptrdiff_t g = 0; g < groups; ++g)
                scales[g * PANEL + c] = pack_group(row + g * BLOCKS, std::min(BLOCKS, count - g * BLOCKS),
                                                   packed_blocks + g * BLOCKS, c);
        }
    }
}

void multiply(const Team& team, const Linear& linear, const void* prepared, void* y, ptrdiff_t rows) {
    static thread_local std::vector<Line> unpacked;
    const ptrdiff_t groups = groups_of(linear.inputs);
    unpacked.resize(quantized::MAX_PANELS * groups * GROUP_BYTES / sizeof(Line));
    const ptrdiff_t bytes = panel_bytes(groups);
    const auto get_panel = [&](ptrdiff_t p, ptrdiff_t slot, ptrdiff_t step) {
        const uint8_t* panel = static_cast<const uint8_t*>(linear.weight) + p * bytes;
        const auto* scales =
            reinterpret_cast<const BFloat16*>(panel + groups * BLOCKS * static_cast<ptrdiff_t>(sizeof(PackedBlock)));
        const uint8_t* weights = unpacked.data()->bytes + slot * groups * GROUP_BYTES;
        return IntegerPanel{weights, scales, panel, panel + step * bytes, groups, unpack};
    };
    quantized::multiply(team, linear, prepared, static_cast<BFloat16*>(y), rows, get_panel);
}

}  // namespace linear_int4
