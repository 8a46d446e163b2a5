// Attention over the paged cache; see attention.h. Rotates, picks the kernel for the types, and runs it over the tasks.
#include "attention.h"

#include "attention_generic.h"
// The few CPUs that have the first but not the second, and no AMX, do with the general kernel.
#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#define ENGINED_PAIRS
#include "attention_pairs.h"
#endif

namespace {

#if defined(ENGINED_PAIRS)
using BFloat16Attention = PairAttention<BFloat16>;
using BFloat16Int8Attention = PairAttention<Int8>;
#else
using BFloat16Attention = GenericAttention<BFloat16, BFloat16>;
using BFloat16Int8Attention = GenericAttention<BFloat16, Int8>;
#endif

template <typename T>
struct Type {
    using type = T;
};

// Calls `work` with the types of activations and kernel.
template <typename Work>
auto with_kernel(const AttentionShape& shape, const Work& work) {
    if (shape.dtype == ElementType::FLOAT32) {
        switch (shape.kv_cache_dtype) {
            case ElementType::FLOAT32: return work(Type<float>{}, Type<GenericAttention<float, float>>{});
            case ElementType::BFLOAT16: return work(Type<float>{}, Type<GenericAttention<float, BFloat16>>{});
            case ElementType::INT8: break;
        }
        return work(Type<float>{}, Type<GenericAttention<float, Int8>>{});
    }
    switch (shape.kv_cache_dtype) {
        case ElementType::FLOAT32: return work(Type<BFloat16>{}, Type<GenericAttention<BFloat16, float>>{});
        case ElementType::BFLOAT16: return work(Type<BFloat16>{}, Type<BFloat16Attention>{});
        case ElementType::INT8: break;
    }
    return work(Type<BFloat16>{}, Type<BFloat16Int8Attention>{});
}

// Rotates heads in place (rotary embedding): the two halves of each pair up. `angles` holds half a head of cosines,
// then the sines.
template <typename T>
void rotate(T* heads, ptrdiff_t num_heads, const float* angles, ptrdiff_t head_dim) {
    const ptrdiff_t half = head_dim / 2;
    T* const end = heads + num_heads * head_dim;
    ptrdiff_t i = 0;
    // All heads with the same angles, which stay in registers.
    for (; i + LANES <= half; i += LANES) {
        const Vector cosine = load(angles + i), sine = load(angles + half + i);
        for (T* head = heads; head < end; head += head_dim) {
            const Vector first = load(head + i), second = load(head + half + i);
            store(head + i, first * cosine - second * sine);
            store(head + half + i, second * cosine + first * sine);
        }
    }
    for (; i < half; ++i)
        for (T* head = heads; head < end; head += head_dim) {
            const float first = to_float(head[i]), second = to_float(head[half + i]);
            from_float(head + i, first * angles[i] - second * angles[half + i]);
            from_float(head + half + i, second * angles[i] + first * angles[half + i]);
        }
}

// Queries, keys and values of one token.
template <typename Kernel, typename T>
void rotate_and_write_token(const AttentionShape& shape, T* heads, const float* angles, int64_t slot, char* keys,
                            char* values) {
    const ptrdiff_t num_rotated = shape.num_heads + shape.num_kv_heads, head_dim = shape.head_dim;
    rotate(heads, num_rotated, angles, head_dim);
    for (ptrdiff_t head = 0; head < shape.num_kv_heads; ++head) {
        const ptrdiff_t offset = slot % shape.block_size;
        const ptrdiff_t block = slot / shape.block_size * shape.block_stride + head * shape.head_stride;
        Kernel::write(shape, heads + (shape.num_heads + head) * head_dim, keys + block, offset, true);
        Kernel::write(shape, heads + (num_rotated + head) * head_dim, values + block, offset, false);
    }
}

// [rows of the task], divided by their sums -> their places in the output
template <typename T>
void finish(const AttentionShape& shape, const AttentionTask& task, const RowStates& states, T* output) {
    const ptrdiff_t group = shape.group(), head_dim = shape.head_dim;
    for (ptrdiff_t r = 0; r < task.tokens * group; ++r) {
        T* target = output + ((task.row + r / group) * shape.num_heads + task.kv_head * group + r % group) * head_dim;
        const float inverse = 1.0f / states.sums[r];
        for (ptrdiff_t d = 0; d < head_dim; d += LANES)
            store(target + d, load(states.output + r * head_dim + d) * inverse);
    }
}

template <typename Kernel, typename T>
void attend_task(const AttentionPlan& plan, const AttentionTask& task, const AttentionTask* next, const T* heads,
                 const char* keys, const char* values, T* output, Scratch& scratch) {
    const AttentionShape& shape = plan.shape();
    const ptrdiff_t rows = task.tokens * shape.group(), size = plan.partial_size(task);
    scratch.reserve(2 * Scratch::bytes<float>(size) + Kernel::scratch_bytes(shape, rows));
    Kernel kernel(shape, task, heads, keys, values, scratch);
    if (task.partial >= 0)
        return kernel.attend(task.begin, task.end, RowStates(plan.partials() + task.partial, rows), next);
    const RowStates states(scratch.take<float>(size), rows), later(scratch.take<float>(size), rows);
    for (ptrdiff_t begin = task.begin, end; begin < task.end; begin = end) {
        end = std::min(task.end, (begin / PIECE_TOKENS + 1) * PIECE_TOKENS);
        kernel.attend(begin, end, begin == task.begin ? states : later, next);
        if (begin != task.begin) merge(states, later, rows, shape.head_dim, Kernel::power);
    }
    finish(shape, task, states, output);
}

}  // namespace

ptrdiff_t block_bytes(const AttentionShape& shape) {
    return with_kernel(shape, [&](auto, auto kernel) { return decltype(kernel)::type::block_bytes(shape); });
}

void rotate_and_write(Range tokens, const AttentionPlan& plan, void* heads, const float* angles, void* keys,
                      void* values) {
    const AttentionShape& shape = plan.shape();
    with_kernel(shape, [&](auto type, auto kernel) {
        using T = typename decltype(type)::type;
        for (ptrdiff_t token = tokens.begin; token < tokens.end; ++token)
            rotate_and_write_token<typename decltype(kernel)::type>(
                shape, static_cast<T*>(heads) + token * shape.token_size(), angles + token * shape.head_dim,
                plan.batch().slots[token], static_cast<char*>(keys), static_cast<char*>(values));
    });
}

void attend(const Team& team, const AttentionPlan& plan, const void* heads, const void* keys, const void* values,
            void* output) {
    thread_local Scratch scratch;
    with_kernel(plan.shape(), [&](auto type, auto kernel) {
        using T = typename decltype(type)::type;
        const std::vector<AttentionTask>& tasks = plan.tasks_of(team);
        for (size_t i = 0; i < tasks.size(); ++i)
            attend_task<typename decltype(kernel)::type>(plan, tasks[i], i + 1 < tasks.size() ? &tasks[i + 1] : nullptr,
                                                         static_cast<const T*>(heads), static_cast<const char*>(keys),
                                                         static_cast<const char*>(values), static_cast<T*>(output),
                                                         scratch);
    });
}

void combine(const Team& team, const AttentionPlan& plan, void* output) {
    const AttentionShape& shape = plan.shape();
    with_kernel(shape, [&](auto type, auto kernel) {
        using T = typename decltype(type)::type;
        const Range splits = team.share(static_cast<ptrdiff_t>(plan.splits().size()));
        for (ptrdiff_t i = splits.begin; i < splits.end; ++i) {
            const AttentionPlan::Split& split = plan.splits()[i];
            const ptrdiff_t rows = split.task.tokens * shape.group(), size = plan.partial_size(split.task);
            float* partial = plan.partials() + split.task.partial;
            const RowStates states(partial, rows);
            for (ptrdiff_t piece = 1; piece < split.num_pieces; ++piece)
                merge(states, RowStates(partial + piece * size, rows), rows, shape.head_dim,
                      decltype(kernel)::type::power);
            finish(shape, split.task, states, static_cast<T*>(output));
        }
    });
}

extern "C" {

ptrdiff_t engined_attention_block_bytes(const AttentionShape* shape) { return block_bytes(*shape); }

// One layer of one step; `heads`, `angles`, `keys`, `values` and `output` as above.
void engined_attention(const AttentionShape* shape, const AttentionBatch* batch, void* heads, const float* angles,
                       void* keys, void* values, void* output) {
    const AttentionPlan plan(*shape, *batch, omp_get_max_threads());
    in_team([&](const Team& team) {
        rotate_and_write(team.share(batch->num_tokens()), plan, heads, angles, keys, values);
        team.wait();
        attend(team, plan, heads, keys, values, output);
        if (!plan.is_split()) return;
        team.wait();
        combine(team, plan, output);
    });
}

ptrdiff_t engined_lanes() { return LANES; }
}
