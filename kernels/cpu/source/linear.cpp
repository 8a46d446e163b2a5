// Which format does what, and the entry points for single products.
#include "linear.h"

#include <vector>

#include "linear_formats.h"
#include "quantize.h"

ptrdiff_t packed_bytes(const Linear& linear) {
    switch (linear.format) {
        case WeightFormat::BFLOAT16: return linear_bfloat16::packed_bytes(linear);
        case WeightFormat::INT8: return linear_int8::packed_bytes(linear);
        case WeightFormat::INT4: return linear_int4::packed_bytes(linear);
        default: return linear_float::packed_bytes(linear);
    }
}

void pack(const Team& team, const Linear& linear, const void* weight, void* packed) {
    switch (linear.format) {
        case WeightFormat::BFLOAT16: return linear_bfloat16::pack(team, linear, weight, packed);
        case WeightFormat::INT8: return linear_int8::pack(team, linear, weight, packed);
        case WeightFormat::INT4: return linear_int4::pack(team, linear, weight, packed);
        default: return linear_float::pack(team, linear, weight, packed);
    }
}

namespace {
bool is_quantized(const Linear& linear) {
    return linear.format == WeightFormat::INT8 || linear.format == WeightFormat::INT4;
}

Rounding rounding_of(const Linear& linear) {
    return linear.format == WeightFormat::INT8 ? INT8_ROUNDING : INT4_ROUNDING;
}
}  // namespace

ptrdiff_t prepared_bytes(const Linear& linear, ptrdiff_t rows) {
    return is_quantized(linear) ? QuantizedRows::bytes(rows, linear.inputs, rounding_of(linear)) : 0;
}

void prepare(const Team& team, const Linear& linear, const void* x, void* prepared, ptrdiff_t rows) {
    if (is_quantized(linear))
        quantize_rows(team, static_cast<const BFloat16*>(x), rows, linear.inputs, rounding_of(linear), prepared);
}

void multiply(const Team& team, const Linear& linear, const void* x, void* y, ptrdiff_t rows) {
    switch (linear.format) {
        case WeightFormat::BFLOAT16: return linear_bfloat16::multiply(team, linear, x, y, rows);
        case WeightFormat::INT8: return linear_int8::multiply(team, linear, x, y, rows);
        case WeightFormat::INT4: return linear_int4::multiply(team, linear, x, y, rows);
        default: return linear_float::multiply(team, linear, x, y, rows);
    }
}

extern "C" {

ptrdiff_t engined_packed_bytes(const Linear* linear) { return packed_bytes(*linear); }

void engined_pack(const Linear* linear, const void* weight, void* packed) {
    in_team([&](const Team& team) { pack(team, *linear, weight, packed); });
}

// weight [outputs][inputs] of bfloat16 -> blocks [outputs][blocks of inputs]
void engined_quantize_blocks(const void* weight, ptrdiff_t outputs, ptrdiff_t inputs, void* blocks) {
    in_team([&](const Team& team) {
        quantize_blocks(team, static_cast<const BFloat16*>(weight), outputs, inputs, static_cast<Block*>(blocks));
    });
}

void engined_linear(const Linear* linear, const void* x, void* y, ptrdiff_t rows) {
    static thread_local std::vector<Line> scratch;
    const ptrdiff_t bytes = prepared_bytes(*linear, rows);
    scratch.resize(std::max<ptrdiff_t>(scratch.size(), (bytes + sizeof(Line) - 1) / sizeof(Line)));
    void* prepared = scratch.data();
    in_team([&](const Team& team) {
        if (bytes > 0) {
            prepare(team, *linear, x, prepared, rows);
            team.wait();
        }
        multiply(team, *linear, bytes > 0 ? prepared : x, y, rows);
    });
}
}
