// Types of what lies in memory.
#pragma once

#include <cstddef>
#include <cstdint>

enum class ElementType : int64_t { FLOAT32, BFLOAT16, INT8 };

constexpr ptrdiff_t element_bytes(ElementType type) {
    return type == ElementType::FLOAT32 ? 4 : type == ElementType::BFLOAT16 ? 2 : 1;
}
