// Which instructions the kernels were built with, for `engined doctor`. The conditions are those of the kernels' files.
#if defined(__AVX512F__)
#define VECTORS "AVX512"
#elif defined(__AVX2__)
#define VECTORS "AVX2"
#elif defined(__AVX__)
#define VECTORS "AVX"
#elif defined(__SSE2__)
#define VECTORS "SSE2"
#elif defined(__ARM_NEON)
#define VECTORS "NEON"
#else
#define VECTORS "plain C++"
#endif

#if defined(__AVX512BF16__) && defined(__AMX_BF16__)
#define PAIRS "AMX bf16"
#elif defined(__AVX512BF16__)
#define PAIRS "AVX512-BF16"
#else
#define PAIRS VECTORS
#endif

#if defined(__AMX_INT8__)
#define INTEGERS "AMX int8"
#elif defined(__AVX512VNNI__)
#define INTEGERS "AVX512-VNNI"
#elif defined(__AVXVNNI__)
#define INTEGERS "AVX-VNNI"
#else
#define INTEGERS VECTORS
#endif

// Of products and attention over bfloat16.
extern "C" const char* engined_bfloat16_instructions() { return PAIRS; }

// Of products by quantized weights.
extern "C" const char* engined_integer_instructions() { return INTEGERS; }

// Of all else.
extern "C" const char* engined_vector_instructions() { return VECTORS; }
