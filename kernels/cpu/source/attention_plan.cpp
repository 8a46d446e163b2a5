// The tasks of a step, dealt out to the threads.
#include "attention.h"

namespace {

// Query rows (tokens times the heads that share a KV head) which pass over the cache together.
constexpr ptrdiff_t MAX_TASK_ROWS = 96;
// Cost of a task in units of a row's token: reading a token of the context, and starting the task.
constexpr ptrdiff_t READ_COST = 8, START_COST = 1024;
// Rows that a kernel computes at once, and for which there must be room.
constexpr ptrdiff_t MAX_GRANULE = 16;
// A thread's work should consist of so many tasks, or be cut.
constexpr ptrdiff_t MIN_TASKS = 4;

ptrdiff_t cost(const AttentionShape& shape, const AttentionTask& task) {
    return (task.end - task.begin) * (task.tokens * shape.group() + READ_COST) + START_COST;
}

std::vector<AttentionTask> make_tasks(const AttentionShape& shape, const AttentionBatch& batch) {
    const ptrdiff_t most = std::max<ptrdiff_t>(1, MAX_TASK_ROWS / shape.group());
    std::vector<AttentionTask> tasks;
    for (ptrdiff_t i = 0; i < batch.num_requests; ++i) {
        const ptrdiff_t end = batch.query_starts[i + 1];
        for (ptrdiff_t row = batch.query_starts[i]; row < end; row += most)
            for (ptrdiff_t head = 0; head < shape.num_kv_heads; ++head) {
                const ptrdiff_t tokens = std::min(most, end - row), position = batch.seq_lens[i] - (end - row);
                tasks.push_back({batch.block_table + i * batch.table_width, row, tokens, position, head,
                                 shape.first_visible(position), position + tokens, -1});
            }
    }
    return tasks;
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionShape& shape, const AttentionBatch& batch, ptrdiff_t num_threads)
    : shape_(shape), batch_(batch), tasks_(num_threads) {
    std::vector<AttentionTask> tasks;
    const std::vector<AttentionTask> whole = make_tasks(shape, batch);
    ptrdiff_t total = 0;
    for (const AttentionTask& task : whole) total += cost(shape, task);
    ptrdiff_t num_floats = 0;
    for (const AttentionTask& task : whole) {
        const ptrdiff_t first = task.begin / PIECE_TOKENS, last = (task.end - 1) / PIECE_TOKENS;
        if (num_threads == 1 || first == last || cost(shape, task) * num_threads * MIN_TASKS <= total) {
            tasks.push_back(task);
            continue;
        }
        for (ptrdiff_t piece = first; piece <= last; ++piece) {
            tasks.push_back(task);
            tasks.back().begin = std::max(task.begin, piece * PIECE_TOKENS);
            tasks.back().end = std::min(task.end, (piece + 1) * PIECE_TOKENS);
            tasks.back().partial = num_floats;
            if (piece == first) splits_.push_back({tasks.back(), last - first + 1});
            num_floats += partial_size(task);
        }
    }
    partials_.resize(num_floats);
    // The longest first, each to the thread that has least to do.
    std::stable_sort(tasks.begin(), tasks.end(),
                     [&](const auto& a, const auto& b) { return cost(shape, a) > cost(shape, b); });
    std::vector<ptrdiff_t> load(num_threads);
    for (const AttentionTask& task : tasks) {
        const ptrdiff_t thread = std::min_element(load.begin(), load.end()) - load.begin();
        load[thread] += cost(shape, task);
        tasks_[thread].push_back(task);
    }
}

ptrdiff_t AttentionPlan::partial_size(const AttentionTask& task) const {
    const ptrdiff_t rows = task.tokens * shape_.group();
    return 2 * rows + (rows + MAX_GRANULE - 1) / MAX_GRANULE * MAX_GRANULE * shape_.head_dim;
}
