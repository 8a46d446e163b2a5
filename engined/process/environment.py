"""Variables that native libraries read when a process loads them. Set by its parent."""


def compute_environment(num_threads: int) -> dict[str, str]:
    """For a process that runs a model on `num_threads` threads."""
    return {
        "OMP_NUM_THREADS": str(num_threads),
        # A thread that waits for another gives its core up at once. libgomp would spin for milliseconds, and where
        # other programs want the cores too, it spins against the very thread that it waits for.
        "GOMP_SPINCOUNT": "0",
        # numpy multiplies no matrices here, and needs no threads for it.
        "OPENBLAS_NUM_THREADS": "1",
        # One heap: with one a thread, each keeps its own holes, and memory grows from round to round of the same load.
        "MALLOC_ARENA_MAX": "1",
        # What a step frees, the next one allocates again: the system need not provide these pages anew. A resting
        # engine gives them back all the same (Worker.release_memory).
        "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
        "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
        # oneDNN keeps compiled products of 150 KB each, 1024 of them by default. A model needs some 50 for each shape
        # of its weights (see layers.dense_weight), few of them often; to make one again takes half a millisecond.
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    }


def frontend_environment() -> dict[str, str]:
    """For a process that turns text into tokens beside one that computes."""
    # Otherwise a thread for each core, which are the model's, tokenizes; alone, a text takes a tenth less time too.
    return {"TOKENIZERS_PARALLELISM": "false"}
