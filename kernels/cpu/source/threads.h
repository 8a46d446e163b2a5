// The threads that carry out a step together: who I am, which part is mine, and how we wait for each other.
#pragma once

#include <omp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
inline void relax() { _mm_pause(); }
#else
inline void relax() {}
#endif

// Looks at the other threads before the core is given up: 11 microseconds on an Intel server, other machines pause for
// less. On a busy machine whoever waits must sleep, or it would take the core that the awaited thread needs.
constexpr int SPINS = 1 << 10;

// Where threads meet.
class Barrier {
   public:
    // All of `count` threads arrive before any of them goes on.
    void wait(ptrdiff_t count) {
        const uint32_t generation = generation_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
            arrived_.store(0, std::memory_order_relaxed);
            generation_.store(generation + 1, std::memory_order_release);
            generation_.notify_all();
            return;
        }
        for (int spin = 0; spin < SPINS; ++spin) {
            if (generation_.load(std::memory_order_acquire) != generation) return;
            relax();
        }
        generation_.wait(generation, std::memory_order_acquire);
    }

   private:
    alignas(64) std::atomic<ptrdiff_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> generation_{0};
};

struct Range {
    ptrdiff_t begin, end;
};

// One thread's view of all of them. Operations take it, do their share, and leave the waiting to their caller.
struct Team {
    ptrdiff_t index, count;
    Barrier* barrier;

    void wait() const {
        if (count > 1) barrier->wait(count);
    }

    // My share of `items`, in whole granules.
    Range share(ptrdiff_t items, ptrdiff_t granule = 1) const {
        const ptrdiff_t granules = (items + granule - 1) / granule;
        const ptrdiff_t begin = granules * index / count * granule, end = granules * (index + 1) / count * granule;
        return {begin < items ? begin : items, end < items ? end : items};
    }
};

// Runs `work` on all of torch's threads at once; returns when the last one is done.
template <typename Work>
inline void in_team(const Work& work) {
    Barrier barrier;
#pragma omp parallel
    work(Team{omp_get_thread_num(), omp_get_num_threads(), &barrier});
}
