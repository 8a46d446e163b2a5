// Weights of 8 bits. A panel has the weights of all groups, then their scales.
#include "linear_quantized.h"

namespace {

ptrdiff_t panel_bytes(ptrdiff_t groups) {
    return quantized::whole_lines(groups * GROUP_BYTES + quantized::scale_bytes(groups));
}

void fetch(const IntegerPanel& panel, ptrdiff_t group) { panel.fetch_ahead<GROUP_BYTES>(group); }

}  // namespace

namespace linear_int8 {

ptrdiff_t packed_bytes(const Linear& linear) {
    return Panels(linear, PANEL).count() * panel_bytes(groups_of(linear.inputs));
}

void pack(const Team& team, const Linear& linear, const void* weight, void* packed) {
    const Panels panels(linear, PANEL);
    const ptrdiff_t inputs = linear.inputs, groups = groups_of(inputs);
    const Range mine = team.share(panels.count());
    for (ptrdiff_t p = mine.begin; p < mine.end; ++p) {
        uint8_t* weights = static_cast<uint8_t*>(packed) + p * panel_bytes(groups);
        BFloat16* scales = reinterpret_cast<BFloat16*>(weights + groups * GROUP_BYTES);
        std::memset(weights, 0, panel_bytes(groups));
        for (ptrdiff_t c = 0; c < panels.existing(p); ++c) {
            const BFloat16* row = static_cast<const BFloat16*>(weight) + panels.weight_row(p, c) * inputs;
            for (ptrdiff_t g = 0; g < groups; ++g) {
                const QuantizedGroup group =
                    quantize_group(row + g * GROUP, std::min(GROUP, inputs - g * GROUP));
                scales[g * PANEL + c] = group.scale;
                for (ptrdiff_t k = 0; k < GROUP; ++k)
                    weights[g * GROUP_BYTES + (k / 4 * PANEL + c) * 4 + k % 4] =
                        static_cast<uint8_t>(group.values[k] + WEIGHT_BIAS);
            }
        }
    }
}

void multiply(const Team& team, const Linear& linear, const void* prepared, void* y, ptrdiff_t rows) {
    const ptrdiff_t groups = groups_of(linear.inputs);
    const ptrdiff_t bytes = panel_bytes(groups);
    const auto get_panel = [&](ptrdiff_t p, ptrdiff_t, ptrdiff_t step) {
        const uint8_t* weights = static_cast<const uint8_t*>(linear.weight) + p * bytes;
        const auto* scales = reinterpret_cast<const BFloat16*>(weights + groups * GROUP_BYTES);
        return IntegerPanel{weights, scales, weights, weights + step * bytes, groups, fetch};
    };
    quantized::multiply(team, linear, prepared, static_cast<BFloat16*>(y), rows, get_panel);
}

}  // namespace linear_int8
