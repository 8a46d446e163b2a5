"""Children of a protected supervisor give its protection up."""

import subprocess
import sys
from pathlib import Path

import pytest

SCORE = Path("/proc/self/oom_score_adj")
CODE = """
import sys
from engined.process.oom import _SCORE, give_up_protection
_SCORE.write_text(sys.argv[1])
give_up_protection()
print(_SCORE.read_text())
"""


@pytest.mark.parametrize(("inherited", "own"), [(-500, 300), (0, 0), (400, 400)])
def test_score_of_a_child(inherited: int, own: int) -> None:
    result = subprocess.run(
        [sys.executable, "-c", CODE, str(inherited)], capture_output=True, text=True, check=False, timeout=30
    )
    if inherited < int(SCORE.read_text()) and "PermissionError" in result.stderr:
        pytest.skip("lowering the score needs a privilege that is not here")
    assert result.stdout.split() == [str(own)], result.stderr
