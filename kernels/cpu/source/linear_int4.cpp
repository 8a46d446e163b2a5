// Weights of 4 bits, in blocks with a scale and a minimum each. Products sum integers again, so that what holds for
// weights of 8 bits holds for these.
#include <array>
#include <cmath>
#include <vector>

#include "int4_panels.h"
#include "linear_quantized.h"

namespace {

using namespace int4;

constexpr int32_t LARGEST_NUMBER = 15, LARGEST_SCALE = 255 / LARGEST_NUMBER, LARGEST_WEIGHT = 127;

ptrdiff_t panel_bytes(ptrdiff_t steps) {
    return quantized::whole_lines(steps * static_cast<ptrdiff_t>(sizeof(PackedStep)) + quantized::scale_bytes(steps));
}

// A block, and what its numbers are like.
struct Numbers {
    std::array<int32_t, Block::SIZE> numbers;
    float scale, minimum;
    int32_t least, largest;
    float mean, variance;

    explicit Numbers(const Block& block) : scale(from_half(block.scale)), minimum(from_half(block.minimum)) {
        for (ptrdiff_t i = 0; i < Block::SIZE; ++i) numbers[i] = static_cast<int32_t>(block.number(i));
        if (scale < 0.0f) {
            // The same weights, counted from the other end.
            minimum += scale * LARGEST_NUMBER;
            scale = -scale;
            for (int32_t& number : numbers) number = LARGEST_NUMBER - number;
        }
        least = *std::min_element(numbers.begin(), numbers.end());
        largest = *std::max_element(numbers.begin(), numbers.end());
        int32_t sum = 0, squares = 0;
        for (const int32_t number : numbers) sum += number, squares += number * number;
        mean = static_cast<float>(sum) / Block::SIZE;
        variance = static_cast<float>(squares) / Block::SIZE - mean * mean;
    }

    float weight(int32_t number) const { return scale * static_cast<float>(number) + minimum; }
    float reach() const { return std::max(std::abs(weight(least)), std::abs(weight(largest))); }
};

// The blocks of one column in a step, in 8 bits: a weight is (number * scale + minimum) * unit.
struct Units {
    float unit = 0.0f;
    // Integers, small ones.
    float scales[BLOCKS] = {}, minimums[BLOCKS] = {};
    // The mean square of what rounding has changed; infinite where 8 bits do not hold the weights.
    float error = INFINITY;

    Units() = default;
    Units(float given, const Numbers (&blocks)[BLOCKS]) {
        BFloat16 rounded;
        from_float(&rounded, given);
        unit = to_float(rounded);
        if (!std::isnormal(unit)) return;
        float sum = 0.0f;
        for (ptrdiff_t b = 0; b < BLOCKS; ++b) {
            const Numbers& block = blocks[b];
            scales[b] = std::nearbyint(block.scale / unit);
            const float steeper = scales[b] * unit - block.scale;
            const float wanted = block.minimum - steeper * block.mean;
            minimums[b] = std::nearbyint(wanted / unit);
            const float least = scales[b] * static_cast<float>(block.least) + minimums[b];
            const float largest = scales[b] * static_cast<float>(block.largest) + minimums[b];
            if (scales[b] > LARGEST_SCALE || std::max(-least, largest) > LARGEST_WEIGHT) return;
            const float higher = minimums[b] * unit - wanted;
            sum += steeper * steeper * block.variance + higher * higher;
        }
        error = sum;
    }
};

// Those with the least error. The scales of the blocks are whole units: tried are units that divide one of them and are
// not much coarser than 8 bits ask for.
Units best_units(const Numbers (&blocks)[BLOCKS]) {
    float reach = 0.0f;
    for (const Numbers& block : blocks) reach = std::max(reach, block.reach());
    const float finest = reach / LARGEST_WEIGHT, coarsest = 3.0f * finest;
    // With this one all weights fit, however the scales are rounded.
    Units best(reach / (LARGEST_WEIGHT - LARGEST_NUMBER), blocks);
    const auto consider = [&](float unit) {
        const Units units(unit, blocks);
        if (units.error < best.error) best = units;
    };
    consider(finest);
    for (const Numbers& block : blocks)
        for (int32_t scale = LARGEST_SCALE; scale > 0; --scale) {
            const float unit = block.scale / static_cast<float>(scale);
            if (unit > coarsest) break;
            if (unit >= 0.99f * finest) consider(unit);
        }
    return best;
}

// The blocks of a column that make one step -> what is packed of them, and its unit.
BFloat16 pack_step(const Block* blocks, ptrdiff_t count, PackedStep* packed, ptrdiff_t column) {
    static_assert(BLOCKS == 2);
    const Numbers numbers[BLOCKS] = {Numbers(blocks[0]), Numbers(count > 1 ? blocks[1] : Block{})};
    const Units units = best_units(numbers);
    for (ptrdiff_t b = 0; b < BLOCKS; ++b) {
        packed->scales[b][column] = static_cast<uint8_t>(units.scales[b]);
        packed->minimums[b][column] = static_cast<uint8_t>(static_cast<int32_t>(units.minimums[b]) + WEIGHT_BIAS);
        for (ptrdiff_t i = 0; i < Block::SIZE; ++i)
            packed->numbers[b][i / 8][column] |= static_cast<uint32_t>(numbers[b].numbers[i])
                                                 << (i % 4 * 8 + i % 8 / 4 * 4);
    }
    for (const Numbers& block : numbers)
        if (!std::isfinite(block.reach())) return {0x7fc0};
    BFloat16 unit;
    from_float(&unit, units.unit);
    return unit;
}

void unpack(const IntegerPanel& panel, ptrdiff_t step) {
    panel.fetch_ahead<sizeof(PackedStep)>(step);
    unpack_step(reinterpret_cast<const PackedStep*>(panel.source)[step],
                const_cast<uint8_t*>(panel.weights) + step * STEP_BYTES);
}

}  // namespace

namespace linear_int4 {

ptrdiff_t packed_bytes(const Linear& linear) {
    return Panels(linear, PANEL).count() * panel_bytes(steps_of(linear.inputs));
}

void pack(const Team& team, const Linear& linear, const void* blocks, void* packed) {
    const Panels panels(linear, PANEL);
    const ptrdiff_t count = blocks_of(linear.inputs), steps = steps_of(linear.inputs);
    const Range mine = team.share(panels.count());
    for (ptrdiff_t p = mine.begin; p < mine.end; ++p) {
        uint8_t* panel = static_cast<uint8_t*>(packed) + p * panel_bytes(steps);
        PackedStep* packed_steps = reinterpret_cast<PackedStep*>(panel);
        BFloat16* units = reinterpret_cast<BFloat16*>(packed_steps + steps);
        std::memset(panel, 0, panel_bytes(steps));
        for (ptrdiff_t c = 0; c < panels.existing(p); ++c) {
            const Block* column = static_cast<const Block*>(blocks) + panels.weight_row(p, c) * count;
            for (ptrdiff_t s = 0; s < steps; ++s)
                units[s * PANEL + c] = pack_step(column + s * BLOCKS, count - s * BLOCKS, packed_steps + s, c);
        }
    }
}

void multiply(const Team& team, const Linear& linear, const void* prepared, void* y, ptrdiff_t rows) {
    static thread_local std::vector<Line> unpacked;
    const QuantizedRows all(const_cast<void*>(prepared), rows, linear.inputs, INT4_ROUNDING);
    const ptrdiff_t steps = all.steps, bytes = panel_bytes(steps);
    unpacked.resize(quantized::MAX_PANELS * steps * STEP_BYTES / sizeof(Line));
    const auto get_panel = [&](ptrdiff_t p, ptrdiff_t slot, ptrdiff_t ahead) {
        const uint8_t* panel = static_cast<const uint8_t*>(linear.weight) + p * bytes;
        const auto* units = reinterpret_cast<const BFloat16*>(reinterpret_cast<const PackedStep*>(panel) + steps);
        const uint8_t* weights = unpacked.data()->bytes + slot * steps * STEP_BYTES;
        return IntegerPanel{weights, units, panel, panel + ahead * bytes, steps, unpack, 1};
    };
    auto* target = static_cast<BFloat16*>(y);
    if (rows > MAX_PACKED_ROWS)
        return quantized::multiply(team, linear, all, target, rows, get_panel, multiply_panels);
    const BlockSums block_sums(all, rows);
    quantized::multiply(team, linear, all, target, rows, get_panel,
                        [&](RowTiles&, const RowRange& range, ptrdiff_t count, const IntegerPanel* panels, bool,
                            float* sums) { multiply_packed(range, block_sums, count, panels, sums); });
}

}  // namespace linear_int4
