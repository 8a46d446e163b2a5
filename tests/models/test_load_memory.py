"""Loading holds the weights in memory once, plain or packed, never both."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engined.config.directories import cache_directory
from engined.kernels.cpu.build import find_compiler

# The peak is of the whole process, hence a process of its own. What the file's mapped pages take is left out.
LOAD = """
import re, sys, threading
from pathlib import Path
import torch
from engined.checkpoint.load import load_model_info
from engined.kernels.cpu.library import open_cpu_kernels
from engined.layers.context import LayerContext
from engined.layers.tensor_parallel import TensorParallelGroup
from engined.models.loader import open_checkpoint
from engined.models.registry import build_model

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

kernels = open_cpu_kernels(Path(sys.argv[2]))
context = LayerContext(dtype=torch.bfloat16, device=torch.device("cpu"), tp=TensorParallelGroup(), kernels=kernels)
info = load_model_info(sys.argv[1])
before, peaks, is_done = anonymous(), [], threading.Event()

def watch():
    while not is_done.wait(0.001):
        peaks.append(anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
model = build_model(info, context)
model.load(open_checkpoint(info))
is_done.set()
watcher.join()
print((max(peaks + [anonymous()]) - before) / (2 * info.num_parameters))
"""


@pytest.mark.skipif(find_compiler() is None, reason="no compiler here, nothing is packed by kernels")
def test_weights_are_in_memory_once(default_gguf: Path) -> None:
    command = [sys.executable, "-c", LOAD, str(default_gguf), str(cache_directory(os.environ) / "kernels")]
    environment = os.environ | {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    # The tied head has a packed copy of the embeddings, a fifth of this model's weights; twice would be more than 2.
    assert float(done.stdout) < 1.6
