// Intel's tile registers: eight matrices of up to 16 rows of 64 bytes, and instructions that multiply them.
#pragma once

#if defined(__AMX_TILE__)

#include <immintrin.h>

#include <algorithm>
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

// The shapes of the tiles that a linear layer uses; they change only where the last rows of a batch are fewer.
class RowTiles {
   public:
    RowTiles() = default;
    RowTiles(const RowTiles&) = delete;
    RowTiles& operator=(const RowTiles&) = delete;
    ~RowTiles() {
        if (first_ != 0) _tile_release();
    }

    // Tiles 0 to 3 sum, 4 holds rows. With a second row tile 2 and 3 belong to it and 5 holds its rows. The others hold
    // weights.
    void configure(ptrdiff_t rows) {
        const ptrdiff_t first = std::min(rows, TILE_HEIGHT), second = rows - first;
        if (first == first_ && second == second_) return;
        first_ = first, second_ = second;
        TileShapes shapes;
        for (int tile = 0; tile < 8; ++tile) shapes.set(tile, tile < 5 ? first : TILE_HEIGHT);
        if (second > 0)
            for (int tile : {2, 3, 5}) shapes.set(tile, second);
        load_tile_shapes(shapes);
    }

   private:
    ptrdiff_t first_ = 0, second_ = 0;
};

// The sums of row tiles times panels, at most four tiles, go to memory: `panel` elements from one panel to the next,
// and `row_tile` from one row tile to the next.
template <int ROW_TILES, int PANELS, typename T>
inline void store_sums(T* sums, ptrdiff_t panel, ptrdiff_t row_tile) {
    static_assert(ROW_TILES * PANELS <= 4);
    _tile_stored(0, sums, TILE_BYTES);
    if constexpr (PANELS > 1) _tile_stored(1, sums + panel, TILE_BYTES);
    if constexpr (PANELS > 2) {
        _tile_stored(2, sums + 2 * panel, TILE_BYTES);
        _tile_stored(3, sums + 3 * panel, TILE_BYTES);
    }
    if constexpr (ROW_TILES > 1) {
        _tile_stored(2, sums + row_tile, TILE_BYTES);
        if constexpr (PANELS > 1) _tile_stored(3, sums + row_tile + panel, TILE_BYTES);
    }
}

#else

struct RowTiles {};

#endif
