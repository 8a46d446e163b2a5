// Intel's tile registers: eight matrices of up to 16 rows of 64 bytes, and instructions that multiply them.
#pragma once

#if defined(__AMX_TILE__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

constexpr ptrdiff_t TILE_HEIGHT = 16;
constexpr ptrdiff_t TILE_BYTES = 64;

// What a thread tells the CPU before it uses tiles, in the layout of `ldtilecfg`.
struct TileShapes {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int tile, ptrdiff_t num_rows, ptrdiff_t num_bytes = TILE_BYTES) {
        rows[tile] = static_cast<uint8_t>(num_rows);
        row_bytes[tile] = static_cast<uint16_t>(num_bytes);
    }
};

// The content of all tiles is lost. Whoever calls it calls `_tile_release` when the tiles are no longer needed.
inline void load_tile_shapes(const TileShapes& shapes) {
    // GCC 12 does not know that the instruction reads memory, and would drop the stores before it.
    asm volatile("" : : "r"(&shapes) : "memory");
    _tile_loadconfig(&shapes);
}

// Tiles are in use as long as this lives.
class TileSession {
   public:
    explicit TileSession(const TileShapes& shapes) { load_tile_shapes(shapes); }
    ~TileSession() { _tile_release(); }
    TileSession(const TileSession&) = delete;
    TileSession& operator=(const TileSession&) = delete;
};

#endif
