// Weights and activations of float32.
#include "linear_generic.h"

namespace linear_float {

ptrdiff_t packed_bytes(const Linear& linear) { return generic::packed_bytes<float>(linear); }

void pack(const Team& team, const Linear& linear, const void* weight, void* packed) {
    generic::pack<float>(team, linear, weight, packed);
}

void multiply(const Team& team, const Linear& linear, const void* x, void* y, ptrdiff_t rows) {
    generic::multiply<float>(team, linear, static_cast<const float*>(x), static_cast<float*>(y), rows);
}

}  // namespace linear_float
