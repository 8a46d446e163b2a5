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
    char *normed, *heads, *attended, *inner, *update;
    // What a product is prepared in, where its format wants that.
    char* prepared;
};

class Forward {
   public:
    Forward(const Decoder& decoder, const AttentionPlan& plan, void* stream, const float* angles, void* output,
            const Buffers& buffers)
        : decoder_(decoder), plan_(plan), stream_(stream), angles_(angles), output_(output), buffers_(buffers) {}

    void run(const Team& team) const {
        for (ptrdiff_t i = 0; i < decoder_.num_layers; ++i) {
            const DecoderLayer& layer = decoder_.layers[i];
            norm(team, i == 0 ? nullptr : buffers_.update, layer.input_norm, buffers_.normed);
            linear(team, layer.qkv, buffers_.normed, buffers_.heads);
            attend(team, layer);
            linear(team, layer.attention_output, buffers_.attended, buffers_.update);
            norm(team, buffers_.update, layer.post_attention_norm, buffers_.normed);
            linear(team, layer.gate_up, buffers_.normed, buffers_.inner);
            linear(team, layer.down, buffers_.inner, buffers_.update);
        }
        norm(team, buffers_.update, decoder_.final_norm, output_);
    }

   private:
    // Each leaves its result to all threads.
    void norm(const Team& team, const void* values, const void* weight, void* normed) const {
        add_rms_norm(team, decoder_.attention.dtype, stream_, values, weight, normed, num_tokens(),
                     decoder_.hidden_size, decoder_.epsilon);
        team.wait();
    }

    void linear(const Team& team, const Linear& linear, const void* x, void* y) const {
        if (prepared_bytes(linear, num_tokens()) > 0) {
            prepare(team, linear, x, buffers_.prepared, num_tokens());
            team.wait();
            x = buffers_.prepared;
        }
        multiply(team, linear, x, y, num_tokens());
        team.wait();
    }

    void attend(const Team& team, const DecoderLayer& layer) const {
        if (layer.query_norm != nullptr) normalize(team, layer);
        // The tokens that this thread has just normalized are the ones that it rotates.
        rotate_and_write(team, plan_, buffers_.heads, angles_, layer.keys, layer.values);
        team.wait();
        ::attend(team, plan_, buffers_.heads, layer.keys, layer.values, buffers_.attended);
        team.wait();
        if (!plan_.is_split()) return;
        combine(team, plan_, buffers_.attended);
        team.wait();
    }

    void normalize(const Team& team, const DecoderLayer& layer) const {
        const AttentionShape& shape = decoder_.attention;
        char* keys = buffers_.heads + shape.num_heads * shape.head_dim * element_bytes(shape.dtype);
        normalize_heads(team, shape.dtype, buffers_.heads, layer.query_norm, num_tokens(), shape.num_heads,
                        shape.token_size(), shape.head_dim, decoder_.epsilon);
        normalize_heads(team, shape.dtype, keys, layer.key_norm, num_tokens(), shape.num_kv_heads, shape.token_size(),
                        shape.head_dim, decoder_.epsilon);
    }

    ptrdiff_t num_tokens() const { return plan_.batch().num_tokens(); }

    const Decoder& decoder_;
    const AttentionPlan& plan_;
    void* stream_;
    const float* angles_;
    void* output_;
    Buffers buffers_;
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
    buffers.normed = cutter.take(bytes * decoder.hidden_size);
    buffers.heads = cutter.take(bytes * shape.token_size());
    buffers.attended = cutter.take(bytes * shape.num_heads * shape.head_dim);
    buffers.inner = cutter.take(bytes * decoder.layers[0].gate_up.columns());
    buffers.update = cutter.take(bytes * decoder.hidden_size);
    const DecoderLayer& layer = decoder.layers[0];
    ptrdiff_t prepared = 0;
    for (const Linear& linear : {layer.qkv, layer.attention_output, layer.gate_up, layer.down})
        prepared = std::max(prepared, prepared_bytes(linear, num_tokens));
    buffers.prepared = cutter.take(prepared);
    return buffers;
}

}  // namespace

extern "C" {

// Bytes that a forward of so many tokens works in.
ptrdiff_t engined_decoder_workspace(const Decoder* decoder, ptrdiff_t num_tokens) {
    Cutter cutter(nullptr);
    cut(*decoder, num_tokens, cutter);
    return cutter.used();
}

// stream [num_tokens][hidden_size]: embeddings, which are overwritten; angles [num_tokens][head_dim]: cosines, then sines
// -> output [num_tokens][hidden_size], after the final norm.
void engined_decoder_forward(const Decoder* decoder, const AttentionBatch* batch, void* stream, const float* angles,
                             void* workspace, void* output) {
    const AttentionPlan plan(decoder->attention, *batch, omp_get_max_threads());
    Cutter cutter(workspace);
    const Forward forward(*decoder, plan, stream, angles, output, cut(*decoder, batch->num_tokens(), cutter));
    in_team([&](const Team& team) { forward.run(team); });
}
}
