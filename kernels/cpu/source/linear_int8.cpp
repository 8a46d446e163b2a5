// Weights of 8 bits, rotated as the rows are. A panel has the weights of all steps, then a scale for each column.
#include <vector>

#include "linear_quantized.h"

namespace {

ptrdiff_t panel_bytes(ptrdiff_t steps) {
    return quantized::whole_lines(steps * STEP_BYTES + quantized::scale_bytes(1));
}

void fetch(const IntegerPanel& panel, ptrdiff_t step) { panel.fetch_ahead<STEP_BYTES>(step); }

}  // namespace

namespace linear_int8 {

ptrdiff_t packed_bytes(const Linear& linear) {
    return Panels(linear, PANEL).count() * panel_bytes(steps_of(linear.inputs));
}

void pack(const Team& team, const Linear& linear, const void* weight, void* packed) {
    const Panels panels(linear, PANEL);
    const ptrdiff_t inputs = linear.inputs, steps = steps_of(inputs);
    std::vector<int8_t> values(steps * STEP);
    const Range mine = team.share(panels.count());
    for (ptrdiff_t p = mine.begin; p < mine.end; ++p) {
        uint8_t* weights = static_cast<uint8_t*>(packed) + p * panel_bytes(steps);
        BFloat16* scales = reinterpret_cast<BFloat16*>(weights + steps * STEP_BYTES);
        std::memset(weights, 0, panel_bytes(steps));
        for (ptrdiff_t c = 0; c < panels.existing(p); ++c) {
            const BFloat16* column = static_cast<const BFloat16*>(weight) + panels.weight_row(p, c) * inputs;
            scales[c] = quantize_column(column, inputs, values.data());
            for (ptrdiff_t k = 0; k < steps * STEP; ++k)
                weights[(k / 4 * PANEL + c) * 4 + k % 4] = static_cast<uint8_t>(values[k] + WEIGHT_BIAS);
        }
    }
}

void multiply(const Team& team, const Linear& linear, const void* prepared, void* y, ptrdiff_t rows) {
    const QuantizedRows all(const_cast<void*>(prepared), rows, linear.inputs, INT8_ROUNDING);
    const ptrdiff_t bytes = panel_bytes(all.steps);
    const auto get_panel = [&](ptrdiff_t p, ptrdiff_t, ptrdiff_t ahead) {
        const uint8_t* weights = static_cast<const uint8_t*>(linear.weight) + p * bytes;
        const auto* scales = reinterpret_cast<const BFloat16*>(weights + all.steps * STEP_BYTES);
        return IntegerPanel{weights, scales, weights, weights + ahead * bytes, all.steps, fetch, 0};
    };
    quantized::multiply(team, linear, all, static_cast<BFloat16*>(y), rows, get_panel, multiply_panels);
}

}  // namespace linear_int8
