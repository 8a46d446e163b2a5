"""Signs of life that one process writes while another reads them, and what counts as one."""

import importlib
import subprocess
import sys
import time
from contextlib import closing

from engined.process.heartbeat import HeartbeatReader, Phase
from engined.process.import_progress import ImportProgress

WRITER = """if True:
    import sys
    from engined.process.heartbeat import HeartbeatWriter, Phase
    writer = HeartbeatWriter(int(sys.argv[1]))
    print("begins", flush=True)
    while True:
        writer.beat(Phase.STEP)
"""


def test_no_beat_is_seen_half_written() -> None:
    """Half a beat could be one of long ago, and its process would be ended for it."""
    began = time.monotonic()
    with closing(HeartbeatReader()) as reader:
        command = [sys.executable, "-c", WRITER, str(reader.fd)]
        with subprocess.Popen(command, pass_fds=[reader.fd], stdout=subprocess.PIPE) as writer:
            try:
                assert writer.stdout is not None and writer.stdout.readline() == b"begins\n"
                deadline, last_count = time.monotonic() + 2.0, 0
                while time.monotonic() < deadline:
                    beat = reader.read()
                    assert beat.time >= began and beat.phase in (Phase.STARTING, Phase.STEP)
                    assert beat.count >= last_count
                    last_count = beat.count
                assert last_count > 1000
            finally:
                writer.kill()


def test_each_import_is_a_sign_of_life_until_the_process_is_ready() -> None:
    num_imports = 0

    def count() -> None:
        nonlocal num_imports
        num_imports += 1

    progress = ImportProgress(count)
    try:
        sys.modules.pop("colorsys", None)
        assert importlib.import_module("colorsys").__name__ == "colorsys" and num_imports == 1
    finally:
        progress.close()
    del sys.modules["colorsys"]
    assert importlib.import_module("colorsys") and num_imports == 1
