// Attention over the paged cache: prefill and decode in any mix, one pass over the blocks with a running softmax.
//
// Keys of a block lie as [head_dim][block_size], so that the scores of a whole block are one small product; values as
// [block_size][head_dim]. A query's blocks are taken in order from the one that its window begins in, and what it must
// not see adds exact zeros. So its result has the same bits whether it is computed alone, in a chunk or in a batch.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tile.h"

namespace {

// Query rows (tokens times the heads that share a KV head) which pass over the cache together.
constexpr ptrdiff_t MAX_TILE_ROWS = 48;
// Cached tokens between two looks at the running maximum, which cost as much as the products of a single block.
constexpr ptrdiff_t CHUNK_TOKENS = 64;

struct Shape {
    ptrdiff_t num_heads, num_kv_heads, head_dim, block_size, num_blocks, window;
    float scale;

    ptrdiff_t group() const { return num_heads / num_kv_heads; }
    ptrdiff_t tile_tokens() const { return std::max<ptrdiff_t>(1, MAX_TILE_ROWS / group()); }
    // Whole blocks. Chunks begin at multiples of their size, so that a token lies in the same one for every query.
    ptrdiff_t chunk_tokens() const { return std::max<ptrdiff_t>(1, CHUNK_TOKENS / block_size) * block_size; }
    // First position that a query at `position` sees; a window of 0 has no end.
    ptrdiff_t first_visible(ptrdiff_t position) const {
        return window == 0 ? 0 : std::max<ptrdiff_t>(0, position - window + 1);
    }
};

// Some new tokens of one request, for one KV head.
struct Task {
    const int64_t* blocks;
    ptrdiff_t row, position, tokens, kv_head;
};

std::vector<Task> make_tasks(const Shape& shape, const int64_t* query_starts, const int64_t* seq_lens,
                             const int64_t* block_table, ptrdiff_t table_width, ptrdiff_t num_requests) {
    std::vector<Task> tasks;
    for (ptrdiff_t i = 0; i < num_requests; ++i) {
        const ptrdiff_t begin = query_starts[i], end = query_starts[i + 1];
        for (ptrdiff_t row = begin; row < end; row += shape.tile_tokens())
            for (ptrdiff_t head = 0; head < shape.num_kv_heads; ++head)
                tasks.push_back({block_table + i * table_width, row, seq_lens[i] - (end - row),
                                 std::min(shape.tile_tokens(), end - row), head});
    }
    // The longest first: what is left for the end is then small, and no thread waits long for another.
    std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) {
        return a.tokens * (a.position + a.tokens) > b.tokens * (b.position + b.tokens);
    });
    return tasks;
}

// What one thread works with.
struct Scratch {
    std::vector<float> queries, scores, output, maxima, sums;

    explicit Scratch(const Shape& shape) {
        const ptrdiff_t rows = shape.tile_tokens() * shape.group();
        queries.resize(rows * shape.head_dim);
        output.resize(rows * shape.head_dim);
        scores.resize(rows * shape.chunk_tokens());
        maxima.resize(rows);
        sums.resize(rows);
    }
};

// One row, which sees tokens [begin, end) of the chunk's `length`: scores become exponentials, sum and output shrink to
// the new maximum.
void update_softmax(float* scores, ptrdiff_t length, ptrdiff_t begin, ptrdiff_t end, float& maximum_so_far,
                    float& sum_so_far, float* output, ptrdiff_t head_dim) {
    Integers lane_index;
    for (int lane = 0; lane < LANES; ++lane) lane_index[lane] = lane;
    const Vector hidden = broadcast(-std::numeric_limits<float>::infinity());
    Vector maxima = broadcast(maximum_so_far);
    for (ptrdiff_t t = 0; t < length; t += LANES) {
        const Integers token = lane_index + static_cast<int32_t>(t);
        const Integers is_seen = (token >= static_cast<int32_t>(begin)) & (token < static_cast<int32_t>(end));
        const Vector score = is_seen ? load(scores + t) : hidden;
        store(scores + t, score);
        // A score that is not a number must reach the result, and a comparison would lose it.
        maxima = (score > maxima) | (score != score) ? score : maxima;
    }
    float new_maximum = maxima[0];
    for (int lane = 1; lane < LANES; ++lane)
        if (maxima[lane] > new_maximum || maxima[lane] != maxima[lane]) new_maximum = maxima[lane];
    Vector chunk_sums = {};
    for (ptrdiff_t t = 0; t < length; t += LANES) {
        const Vector score = load(scores + t);
        const Vector weight = score == hidden ? Vector{} : exponential(score - new_maximum);
        store(scores + t, weight);
        chunk_sums += weight;
    }
    const float shrink = maximum_so_far == new_maximum ? 1.0f : std::exp(maximum_so_far - new_maximum);
    sum_so_far = sum_so_far * shrink + sum_lanes(chunk_sums);
    maximum_so_far = new_maximum;
    if (shrink != 1.0f)
        for (ptrdiff_t d = 0; d < head_dim; d += LANES) store(output + d, load(output + d) * shrink);
}

// Keys or values of the block that holds the token at `position`.
template <typename C>
const C* block_of(const C* cache, const Shape& shape, const Task& task, ptrdiff_t position) {
    const ptrdiff_t block = task.kv_head * shape.num_blocks + task.blocks[position / shape.block_size];
    return cache + block * shape.head_dim * shape.block_size;
}

template <typename T, typename C>
void attend(const Shape& shape, const Task& task, const T* queries, ptrdiff_t query_stride, const C* keys,
            const C* values, T* output, Scratch& scratch) {
    const ptrdiff_t group = shape.group(), head_dim = shape.head_dim, block_size = shape.block_size;
    const ptrdiff_t rows = task.tokens * group;
    for (ptrdiff_t r = 0; r < rows; ++r) {
        const T* query = queries + (task.row + r / group) * query_stride + (task.kv_head * group + r % group) * head_dim;
        for (ptrdiff_t d = 0; d < head_dim; ++d) scratch.queries[r * head_dim + d] = to_float(query[d]) * shape.scale;
    }
    std::fill_n(scratch.output.begin(), rows * head_dim, 0.0f);
    std::fill_n(scratch.maxima.begin(), rows, -std::numeric_limits<float>::infinity());
    std::fill_n(scratch.sums.begin(), rows, 0.0f);

    const ptrdiff_t end = task.position + task.tokens;
    const ptrdiff_t chunk = shape.chunk_tokens();
    for (ptrdiff_t start = shape.first_visible(task.position) / chunk * chunk; start < end; start += chunk) {
        // Whole blocks of it; never beyond the last one that the request has.
        const ptrdiff_t length = std::min(chunk, (end - start + block_size - 1) / block_size * block_size);
        std::fill_n(scratch.scores.begin(), rows * chunk, 0.0f);
        for (ptrdiff_t t = 0; t < length; t += block_size)
            multiply_columns(rows, scratch.queries.data(), head_dim, block_of(keys, shape, task, start + t), block_size,
                             scratch.scores.data() + t, chunk, head_dim, block_size);
        for (ptrdiff_t r = 0; r < rows; ++r) {
            const ptrdiff_t position = task.position + r / group;
            const ptrdiff_t seen_begin = std::max<ptrdiff_t>(0, shape.first_visible(position) - start);
            const ptrdiff_t seen_end = std::min(length, position + 1 - start);
            float* scores = scratch.scores.data() + r * chunk;
            if (seen_begin < seen_end)
                update_softmax(scores, length, seen_begin, seen_end, scratch.maxima[r], scratch.sums[r],
                               scratch.output.data() + r * head_dim, head_dim);
            else
                std::fill_n(scores, length, 0.0f);
        }
        // Never further than the request's own tokens: behind them a stale value may be infinite, and 0 times that is
        // not 0.
        for (ptrdiff_t t = 0; t < length; t += block_size)
            multiply_columns(rows, scratch.scores.data() + t, chunk, block_of(values, shape, task, start + t), head_dim,
                             scratch.output.data(), head_dim, std::min(block_size, end - start - t), head_dim);
    }

    for (ptrdiff_t r = 0; r < rows; ++r) {
        T* target = output + ((task.row + r / group) * shape.num_heads + task.kv_head * group + r % group) * head_dim;
        for (ptrdiff_t d = 0; d < head_dim; d += LANES)
            store(target + d, load(scratch.output.data() + r * head_dim + d) / scratch.sums[r]);
    }
}

// Below so many multiply-adds a thread takes longer to wake than to help.
constexpr ptrdiff_t MIN_PARALLEL_PRODUCTS = 1 << 19;

// Rotates a head in place (rotary embedding): its two halves pair up. `angles` holds half a head of cosines, then the sines.
template <typename T>
void rotate(T* head, const float* angles, ptrdiff_t head_dim) {
    const ptrdiff_t half = head_dim / 2;
    ptrdiff_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        const Vector first = load(head + i), second = load(head + half + i);
        const Vector cosine = load(angles + i), sine = load(angles + half + i);
        store(head + i, first * cosine - second * sine);
        store(head + half + i, second * cosine + first * sine);
    }
    for (; i < half; ++i) {
        const float first = to_float(head[i]), second = to_float(head[half + i]);
        from_float(head + i, first * angles[i] - second * angles[half + i]);
        from_float(head + half + i, second * angles[i] + first * angles[half + i]);
    }
}

// Rotates queries and keys of one token, and puts its keys and values into their slot.
template <typename T, typename C>
void rotate_and_write(const Shape& shape, T* heads, const float* angles, int64_t slot, C* key_cache, C* value_cache) {
    const ptrdiff_t head_dim = shape.head_dim, block_size = shape.block_size;
    const ptrdiff_t block = slot / block_size, offset = slot % block_size;
    for (ptrdiff_t head = 0; head < shape.num_heads + shape.num_kv_heads; ++head)
        rotate(heads + head * head_dim, angles, head_dim);
    const T* keys = heads + shape.num_heads * head_dim;
    const T* values = keys + shape.num_kv_heads * head_dim;
    for (ptrdiff_t head = 0; head < shape.num_kv_heads; ++head) {
        const ptrdiff_t start = (head * shape.num_blocks + block) * head_dim * block_size;
        for (ptrdiff_t d = 0; d < head_dim; ++d)
            from_float(key_cache + start + d * block_size + offset, to_float(keys[head * head_dim + d]));
        for (ptrdiff_t d = 0; d < head_dim; d += LANES)
            store(value_cache + start + offset * head_dim + d, load(values + head * head_dim + d));
    }
}

// heads [num_tokens][num_heads + 2 * num_kv_heads][head_dim]: queries, keys and values of a step, which are rotated in
// place and stored before any of them is attended -> output [num_tokens][num_heads][head_dim]
template <typename T, typename C>
void rotate_write_attend(const Shape& shape, T* heads, const float* angles, const int64_t* slots, C* keys, C* values,
                         const int64_t* query_starts, const int64_t* seq_lens, const int64_t* block_table,
                         ptrdiff_t table_width, ptrdiff_t num_requests, T* output) {
    const ptrdiff_t num_tokens = query_starts[num_requests];
    const ptrdiff_t stride = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
    const std::vector<Task> tasks = make_tasks(shape, query_starts, seq_lens, block_table, table_width, num_requests);
    ptrdiff_t products = 0;
    for (const Task& task : tasks)
        products += task.tokens * (task.position + task.tokens) * shape.group() * shape.head_dim * 2;
#pragma omp parallel if (products > MIN_PARALLEL_PRODUCTS)
    {
#pragma omp for schedule(static)
        for (ptrdiff_t token = 0; token < num_tokens; ++token)
            rotate_and_write(shape, heads + token * stride, angles + token * shape.head_dim, slots[token], keys,
                             values);
        Scratch scratch(shape);
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < tasks.size(); ++i)
            attend(shape, tasks[i], heads, stride, keys, values, output, scratch);
    }
}

}  // namespace

// One function for each type of activations (T) and of the cache (C).
#define ENGINED_ATTENTION(SUFFIX, T, C)                                                                               \
    void engined_attention_##SUFFIX(const Shape* shape, T* heads, const float* angles, const int64_t* slots, C* keys, \
                                    C* values, const int64_t* query_starts, const int64_t* seq_lens,                  \
                                    const int64_t* block_table, ptrdiff_t table_width, ptrdiff_t num_requests,        \
                                    T* output) {                                                                      \
        rotate_write_attend(*shape, heads, angles, slots, keys, values, query_starts, seq_lens, block_table,          \
                            table_width, num_requests, output);                                                       \
    }

extern "C" {
ENGINED_ATTENTION(float32_float32, float, float)
ENGINED_ATTENTION(float32_bfloat16, float, BFloat16)
ENGINED_ATTENTION(bfloat16_float32, BFloat16, float)
ENGINED_ATTENTION(bfloat16_bfloat16, BFloat16, BFloat16)

ptrdiff_t engined_lanes() { return LANES; }
}
