"""Fault points: places where a test makes a process fail, exactly when it comes there for the Nth time. Every process.

They are compiled in and dead: a place costs a call and a look at an empty table. ENGINED_FAULTS, the only switch, names
a folder with a file `plan`, which is read when a process starts and whenever it changes. A line of it is a fault,

    PROCESS PLACE N ACTION      EngineCore decode 3 pause

for processes whose name begins so; N counts from when the line was read. PLACE `now` is wherever the process is. Or it
is `set NAME VALUE`, for a limit that tests want short. A fault strikes once in the life of the folder, whatever is
restarted, and leaves a file in `struck`. This module is, by its nature, ambient state: the one other than the scoped
forward context.
"""

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "ENGINED_FAULTS"
_POLL_SECONDS = 0.01
_NOW = "now"

_Stamp = tuple[int, int]
"""Which plan it is."""


class InjectedError(RuntimeError):
    """What the action `raise` raises; nothing catches it by name."""


@dataclass(slots=True)
class _Fault:
    """One line of the plan, in a process that it is for."""

    line: str
    countdown: int
    action: str


@dataclass(slots=True)
class _State:
    """What this process was told. `faults` is empty in any process that no test has armed."""

    folder: Path | None = None
    process: str = ""
    faults: dict[str, _Fault] | None = None
    settings: dict[str, float] | None = None


_state = _State()
_lock = threading.Lock()


def arm(environ: Mapping[str, str], process: str) -> None:
    """Called once, when a process starts: if a test wants it, read the plan and go on reading it."""
    folder = environ.get(VARIABLE)
    if not folder:
        return
    _state.folder, _state.process = Path(folder), process
    (_state.folder / "struck").mkdir(exist_ok=True)
    stamp = _read_plan(None)
    threading.Thread(target=_follow_plan, args=(stamp,), name="fault plan", daemon=True).start()


def has_any() -> bool:
    """Whether any place may do something: a short way that has none of them asks this first."""
    return bool(_state.faults)


def point(place: str) -> None:
    """A place where the plan may raise an error, sleep, or end the process."""
    if _state.faults:
        action = _strike(place)
        if action is not None:
            _perform(action)


def strikes(place: str) -> bool:
    """Whether the plan wants this place to do its own kind of damage this time."""
    return bool(_state.faults) and _strike(place) is not None


def setting(name: str, default: float) -> float:
    """A limit: its value, or what the plan sets it to."""
    return default if not _state.settings else _state.settings.get(name, default)


def _strike(place: str) -> str | None:
    """Count a visit; the action if this is the one."""
    with _lock:
        fault = (_state.faults or {}).get(place)
        if fault is None:
            return None
        fault.countdown -= 1
        if fault.countdown > 0:
            return None
        assert _state.faults is not None
        del _state.faults[place]
    return fault.action if _take(fault) else None


def _take(fault: _Fault) -> bool:
    """Whether this process is the first to commit the fault."""
    assert _state.folder is not None
    # Written first and linked then, so that who sees the file sees it whole.
    draft = _state.folder / f"draft-{os.getpid()}-{threading.get_ident()}"
    draft.write_text(f"{os.getpid()} {time.monotonic()}")
    try:
        os.link(draft, struck_path(_state.folder, fault.line))
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def struck_path(folder: Path, line: str) -> Path:
    """The file that says that a fault has struck: in it the pid, and the time in seconds of CLOCK_MONOTONIC."""
    return folder / "struck" / line.replace(" ", "_").replace("/", "_")


def _perform(action: str) -> None:
    name, _, argument = action.partition("=")
    if name in _ERRORS:
        raise _ERRORS[name]()
    if name == "delay":
        time.sleep(float(argument))
    elif name == "hang":
        time.sleep(3600.0)
    elif name == "pause":
        assert _state.folder is not None
        while not (_state.folder / "resume").exists():
            time.sleep(_POLL_SECONDS)
    elif name == "exit":
        os._exit(int(argument or 0))
    elif name == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        raise AssertionError(f"a fault plan with an unknown action: {action}")


_ERRORS: dict[str, Callable[[], Exception]] = {
    "raise": lambda: InjectedError("injected by the fault plan"),
    "memory": MemoryError,
    "enospc": lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "emfile": lambda: OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    "epipe": lambda: BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)),
}


def _follow_plan(stamp: _Stamp | None) -> None:
    while True:
        time.sleep(_POLL_SECONDS)
        stamp = _read_plan(stamp)
        point(_NOW)


def _read_plan(stamp: _Stamp | None) -> _Stamp | None:
    """Read the plan if it is another than that of `stamp`; its stamp."""
    assert _state.folder is not None
    path = _state.folder / "plan"
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        # Tests put a new file in its place, so that it is always whole.
        if (new := (status.st_ino, status.st_mtime_ns)) == stamp:
            return stamp
        faults, settings = {}, {}
        for line in filter(None, path.read_text().splitlines()):
            process, place, *rest = line.split()
            if process == "set":
                settings[place] = float(rest[0])
            elif _state.process.startswith(process) and not struck_path(_state.folder, line).exists():
                faults[place] = _Fault(line, int(rest[0]), rest[1])
        with _lock:
            _state.faults, _state.settings = faults, settings
        return new
    return None
