// Which core each thread computes on.
#include <sched.h>

#include "threads.h"

extern "C" {

// The caller and the threads that compute with it move to the `count` CPUs, one each, and stay there.
void engined_bind_threads(const int64_t* cpus, ptrdiff_t count) {
    in_team([&](const Team& team) {
        if (team.index >= count) return;
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpus[team.index], &set);
        sched_setaffinity(0, sizeof(set), &set);
    });
}
}
