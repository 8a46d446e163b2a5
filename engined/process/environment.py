"""Variables that native libraries read when a process loads them. Set by the parent of every process that computes."""


def compute_environment(num_threads: int) -> dict[str, str]:
    """For a process that runs a model on `num_threads` threads."""
    return {
        "OMP_NUM_THREADS": str(num_threads),
        # A thread that waits for another gives its core up at once. libgomp would spin for milliseconds, and where
        # other programs want the cores too, it spins against the very thread that it waits for.
        "GOMP_SPINCOUNT": "0",
        # One heap: with one a thread, each keeps its own holes, and memory grows from round to round of the same load.
        "MALLOC_ARENA_MAX": "1",
        # oneDNN keeps compiled products of 150 KB each, 1024 of them by default. A model needs some 50 for each shape
        # of its weights (see layers.dense_weight), few of them often; to make one again takes half a millisecond.
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    }
