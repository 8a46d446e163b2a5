// A whole forward of a decoder in one parallel region: the threads start once a step and not once an operation, and in
// between they meet at barriers. The order of operations is that of engined/models/blocks.py.
#include "attention.h"
#include "elementwise.h"
#include "linear.h"

namespace {

struct DecoderLayer {
    const void* input_norm;
    Linear qkv;
    // Norms of the queries' and the keys' heads, or null.
    const void *query_norm, *key_norm;
    Linear attention_output;
    const void* post_attention_norm;
    Linear gate_up, down;
    void *keys, *values;
};

struct Decoder {
    AttentionShape attention;
    ptrdiff_t hidden_size, num_layers;
    float epsilon;
    const DecoderLayer* layers;
    const void* final_norm;
};

// What lies between the operations, each [num_tokens][its own size].
struct Buffers {
    char *heads, *attended;
};

// What a part of the tokens needs, between operations that follow each other on it.
struct PartBuffers {
    char *normed, *inner, *update;
    // What a product is prepared in, where its format wants that.
    char* prepared;
};

// Some tokens, and who computes them.
struct Part {
    Team team;
    ptrdiff_t first, rows;
    PartBuffers buffers;
};

// Few tokens are one part, and the threads share the columns of each product. When they are many, each thread takes its
// own: what it writes is then still in its cache when it reads it, and threads meet only before and after attention.
// Measured on an Intel server with AMX, two cores: a prompt of 1,024 tokens takes 0.90 of the time, of 512 0.97, of 256
// as long; parts of 128 rows are slower than those of 256, of 512 no faster.
constexpr ptrdiff_t MIN_ROWS_OF_THREAD = 128, MAX_ROWS_OF_PART = 256, ROW_GRANULE = 32;

bool is_parted(ptrdiff_t num_tokens, ptrdiff_t num_threads) {
    return num_tokens >= MIN_ROWS_OF_THREAD * num_threads;
}

class Forward {
   public:
    Forward(const Decoder& decoder, const AttentionPlan& plan, void* stream, const float* angles, void* output,
            const Buffers& buffers, const std::vector<PartBuffers>& parts)
        : decoder_(decoder), plan_(plan), stream_(static_cast<char*>(stream)), angles_(angles),
          output_(static_cast<char*>(output)), buffers_(buffers), parts_(parts) {}

    void run(const Team& team) const {
        in_parts(team, [&](const Part& part) {
            norm(part, nullptr, decoder_.layers[0].input_norm, part.buffers.normed);
            heads(part, decoder_.layers[0]);
        });
        for (ptrdiff_t i = 0; i < decoder_.num_layers; ++i) {
            const DecoderLayer& layer = decoder_.layers[i];
            attend(team, layer);
            in_parts(team, [&](const Part& part) {
                const PartBuffers& buffers = part.buffers;
                linear(part, layer.attention_output, at(part, buffers_.attended, attended_size()), buffers.update);
                norm(part, buffers.update, layer.post_attention_norm, buffers.normed);
                linear(part, layer.gate_up, buffers.normed, buffers.inner);
                linear(part, layer.down, buffers.inner, buffers.update);
                if (i + 1 == decoder_.num_layers)
                    return norm(part, buffers.update, decoder_.final_norm, at(part, output_, decoder_.hidden_size));
                norm(part, buffers.update, decoder_.layers[i + 1].input_norm, buffers.normed);
                heads(part, decoder_.layers[i + 1]);
            });
        }
    }

   private:
    template <typename Work>
    void in_parts(const Team& team, const Work& work) const {
        if (!is_parted(num_tokens(), team.count)) return work(Part{team, 0, num_tokens(), parts_[0]});
        const Range mine = team.share(num_tokens(), ROW_GRANULE);
        for (ptrdiff_t first = mine.begin; first < mine.end; first += MAX_ROWS_OF_PART)
            work(Part{Team{0, 1, nullptr}, first, std::min(MAX_ROWS_OF_PART, mine.end - first), parts_[team.index]});
        team.wait();
    }

    // Each leaves its result to all threads of the part.
    void norm(const Part& part, const void* values, const void* weight, void* normed) const {
        add_rms_norm(part.team, decoder_.attention.dtype, at(part, stream_, decoder_.hidden_size), values, weight,
                     normed, part.rows, decoder_.hidden_size, decoder_.epsilon);
        part.team.wait();
    }

    void linear(const Part& part, const Linear& linear, const void* x, void* y) const {
        if (prepared_bytes(linear, part.rows) > 0) {
            prepare(part.team, linear, x, part.buffers.prepared, part.rows);
            part.team.wait();
            x = part.buffers.prepared;
        }
        multiply(part.team, linear, x, y, part.rows);
        part.team.wait();
    }

    // Queries, keys and values of the normed input; the latter two go to the cache.
    void heads(const Part& part, const DecoderLayer& layer) const {
        linear(part, layer.qkv, part.buffers.normed, at(part, buffers_.heads, decoder_.attention.token_size()));
        const Range share = part.team.share(part.rows), mine{part.first + share.begin, part.first + share.end};
        if (layer.query_norm != nullptr) normalize(mine, layer);
        rotate_and_write(mine, plan_, buffers_.heads, angles_, layer.keys, layer.values);
        part.team.wait();
    }

    void attend(const Team& team, const DecoderLayer& layer) const {
        ::attend(team, plan_, buffers_.heads, layer.keys, layer.values, buffers_.attended);
        team.wait();
        if (!plan_.is_split()) return;
        combine(team, plan_, buffers_.attended);
        team.wait();
    }

    void normalize(Range tokens, const DecoderLayer& layer) const {
        const AttentionShape& shape = decoder_.attention;
        char* queries = buffers_.heads + tokens.begin * shape.token_size() * element_bytes(shape.dtype);
        char* keys = queries + shape.num_heads * shape.head_dim * element_bytes(shape.dtype);
        const Team alone{0, 1, nullptr};
        const ptrdiff_t rows = tokens.end - tokens.begin;
        normalize_heads(alone, shape.dtype, queries, layer.query_norm, rows, shape.num_heads, shape.token_size(),
                        shape.head_dim, decoder_.epsilon);
        normalize_heads(alone, shape.dtype, keys, layer.key_norm, rows, shape.num_kv_heads, shape.token_size(),
                        shape.head_dim, decoder_.epsilon);
    }

    char* at(const Part& part, char* buffer, ptrdiff_t size) const {
        return buffer + part.first * size * element_bytes(decoder_.attention.dtype);
    }
    ptrdiff_t attended_size() const { return decoder_.attention.num_heads * decoder_.attention.head_dim; }
    ptrdiff_t num_tokens() const { return plan_.batch().num_tokens(); }

    const Decoder& decoder_;
    const AttentionPlan& plan_;
    char* stream_;
    const float* angles_;
    char* output_;
    Buffers buffers_;
    const std::vector<PartBuffers>& parts_;
};

// Cuts one piece of memory into aligned ones; without memory it only adds up what they take.
class Cutter {
   public:
    explicit Cutter(void* memory) : memory_(static_cast<char*>(memory)) {}

    char* take(ptrdiff_t bytes) {
        char* piece = memory_ == nullptr ? nullptr : memory_ + used_;
        used_ += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        return piece;
    }
    ptrdiff_t used() const { return used_; }

   private:
    static constexpr ptrdiff_t ALIGNMENT = 64;
    char* memory_;
    ptrdiff_t used_ = 0;
};

Buffers cut(const Decoder& decoder, ptrdiff_t num_tokens, Cutter& cutter) {
    const AttentionShape& shape = decoder.attention;
    const ptrdiff_t bytes = num_tokens * element_bytes(shape.dtype);
    Buffers buffers;
    buffers.heads = cutter.take(bytes * shape.token_size());
    buffers.attended = cutter.take(bytes * shape.num_heads * shape.head_dim);
    return buffers;
}

std::vector<PartBuffers> cut_parts(const Decoder& decoder, ptrdiff_t num_tokens, Cutter& cutter) {
    const ptrdiff_t num_threads = omp_get_max_threads();
    const bool parted = is_parted(num_tokens, num_threads);
    const ptrdiff_t rows = parted ? MAX_ROWS_OF_PART : num_tokens;
    const ptrdiff_t bytes = rows * element_bytes(decoder.attention.dtype);
    const DecoderLayer& layer = decoder.layers[0];
    ptrdiff_t prepared = 0;
    for (const Linear& linear : {layer.qkv, layer.attention_output, layer.gate_up, layer.down})
        prepared = std::max(prepared, prepared_bytes(linear, rows));
    std::vector<PartBuffers> parts(parted ? num_threads : 1);
    for (PartBuffers& part : parts) {
        part.normed = cutter.take(bytes * decoder.hidden_size);
        part.inner = cutter.take(bytes * layer.gate_up.columns());
        part.update = cutter.take(bytes * decoder.hidden_size);
        part.prepared = cutter.take(prepared);
    }
    return parts;
}

}  // namespace

extern "C" {

// Bytes that a forward of so many tokens works in.
ptrdiff_t engined_decoder_workspace(const Decoder* decoder, ptrdiff_t num_tokens) {
    Cutter cutter(nullptr);
    cut(*decoder, num_tokens, cutter);
    cut_parts(*decoder, num_tokens, cutter);
    return cutter.used();
}

// stream [num_tokens][hidden_size]: embeddings, which are overwritten; angles [num_tokens][head_dim]: cosines, then
// sines -> output [num_tokens][hidden_size], after the final norm.
void engined_decoder_forward(const Decoder* decoder, const AttentionBatch* batch, void* stream, const float* angles,
                             void* workspace, void* output) {
    const AttentionPlan plan(decoder->attention, *batch, omp_get_max_threads());
    Cutter cutter(workspace);
    const Buffers buffers = cut(*decoder, batch->num_tokens(), cutter);
    const std::vector<PartBuffers> parts = cut_parts(*decoder, batch->num_tokens(), cutter);
    const Forward forward(*decoder, plan, stream, angles, output, buffers, parts);
    in_team([&](const Team& team) { forward.run(team); });
}
}
