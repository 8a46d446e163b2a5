// Attention over the paged cache: prefill and decode in any mix.
//
// A step makes one plan, and each layer then calls, with a barrier between two of them:
//     rotate_and_write    new keys and values into the cache
//     attend              results, or partial ones of the contexts that threads share
//     combine             only if plan.is_split(): the results of those
// Whoever reads the output waits once more.
//
// A query passes over its context in pieces that begin at fixed positions, and in chunks of them, and what it must not
// see adds exact zeros. So its result has the same bits whether it is computed alone, in a chunk of a prompt, in a
// batch, by one thread or by several.
#pragma once

#include <algorithm>
#include <vector>

#include "elements.h"
#include "threads.h"

struct AttentionShape {
    // Of queries, keys, values and output; of the cache.
    ElementType dtype, kv_cache_dtype;
    ptrdiff_t num_heads, num_kv_heads, head_dim, block_size;
    // Bytes from the keys of a block to those of the next one, and of a KV head to the next one; values as keys.
    ptrdiff_t block_stride, head_stride;
    // Tokens that a query sees, itself included; 0: all before it.
    ptrdiff_t window;
    // Of the scores.
    float scale;

    ptrdiff_t group() const { return num_heads / num_kv_heads; }
    ptrdiff_t token_size() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
    ptrdiff_t first_visible(ptrdiff_t position) const {
        return window == 0 ? 0 : std::max<ptrdiff_t>(0, position - window + 1);
    }
};

// The new tokens of a step; see AttentionMetadata.
struct AttentionBatch {
    // [num_requests + 1], [num_requests], [num_tokens], [num_requests][table_width]
    const int64_t *query_starts, *seq_lens, *slots, *block_table;
    ptrdiff_t table_width, num_requests;

    ptrdiff_t num_tokens() const { return query_starts[num_requests]; }
};

// Some new tokens of one request, for one KV head, over context [begin, end).
struct AttentionTask {
    const int64_t* blocks;
    ptrdiff_t row, tokens, position, kv_head;
    ptrdiff_t begin, end;
    // Where the partial result lies; -1: there is none, the task has all of the context.
    ptrdiff_t partial;
};

// Tokens of a piece of a context. Whole ones are given to other threads, and the results are combined in order.
constexpr ptrdiff_t PIECE_TOKENS = 512;

// Who does what, the same in every layer. It refers to the batch.
class AttentionPlan {
   public:
    AttentionPlan(const AttentionShape& shape, const AttentionBatch& batch, ptrdiff_t num_threads);

    struct Split {
        // Of the tasks whose context is shared, the first one, which stands for their rows; they follow each other.
        AttentionTask task;
        ptrdiff_t num_pieces;
    };

    const AttentionShape& shape() const { return shape_; }
    const AttentionBatch& batch() const { return batch_; }
    const std::vector<AttentionTask>& tasks_of(const Team& team) const { return tasks_[team.index]; }
    bool is_split() const { return !splits_.empty(); }
    const std::vector<Split>& splits() const { return splits_; }
    // Floats of the partial result of a task, with room for rows up to a multiple of 16; and the results themselves.
    ptrdiff_t partial_size(const AttentionTask& task) const;
    float* partials() const { return partials_.data(); }

   private:
    AttentionShape shape_;
    AttentionBatch batch_;
    std::vector<std::vector<AttentionTask>> tasks_;
    std::vector<Split> splits_;
    mutable std::vector<float> partials_;
};

// Bytes of the keys of one block and one KV head; the values take as many.
ptrdiff_t block_bytes(const AttentionShape& shape);

// heads [num_tokens][num_heads + 2 * num_kv_heads][head_dim]: queries, keys, values; the first two are rotated in place
// by angles [num_tokens][head_dim], cosines then sines. Keys and values go to their slots. My share of the tokens.
void rotate_and_write(Range tokens, const AttentionPlan& plan, void* heads, const float* angles, void* keys,
                      void* values);

// My tasks -> output [num_tokens][num_heads][head_dim]
void attend(const Team& team, const AttentionPlan& plan, const void* heads, const void* keys, const void* values,
            void* output);

// My share of the rows whose context was split.
void combine(const Team& team, const AttentionPlan& plan, void* output);
