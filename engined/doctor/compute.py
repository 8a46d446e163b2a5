"""What a rank would compute with, tried in a process of its own."""

import signal
import subprocess
import sys
from pathlib import Path

from engined.doctor.finding import Finding, error, ok, warning
from engined.errors import ProtocolError
from engined.process.environment import compute_environment
from engined.protocol.codec import decode
from engined.protocol.compute_report import ComputeReport

_TIMEOUT = 300.0
"""Seconds, a build among them."""
_INSTALL = "install g++: apt install g++, dnf install gcc-c++, or apk add g++"


def check_compute(kernel_cache: Path, environ: dict[str, str], num_threads: int) -> list[Finding]:
    """Compiler, kernels and the path of each part. Builds the kernels as the first start would."""
    command = [sys.executable, "-P", "-m", "engined.worker.probe", str(kernel_cache)]
    environment = environ | compute_environment(num_threads)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return [error("torch", f"gave no answer within {_TIMEOUT:g} s", "look for what keeps this machine busy")]
    try:
        return describe_compute(decode(done.stdout, ComputeReport))
    except ProtocolError:
        return [_describe_crash(done)]


def describe_compute(report: ComputeReport) -> list[Finding]:
    """The findings of what the process reported."""
    findings = [ok("torch", report.torch), _describe_compiler(report), _describe_kernels(report)]
    if report.tiles == "refused":
        findings.append(
            warning(
                "AMX",
                "the CPU has it, but the system refuses it",
                "take Linux 5.16 or newer, and let the container's seccomp profile pass arch_prctl",
            )
        )
    for name, paths in (("linears", report.linears), ("attention", report.attention)):
        findings.append(ok(name, ", ".join(f"{dtype}: {path}" for dtype, path in paths.items())))
    return findings


def _describe_compiler(report: ComputeReport) -> Finding:
    if report.compiler is None:
        return warning("compiler", "no g++", _INSTALL)
    return ok("compiler", report.compiler)


def _describe_kernels(report: ComputeReport) -> Finding:
    if report.problem is None:
        return ok("kernels", f"built: {report.kernels}")
    if report.kernels is not None:
        return error("kernels", report.problem, f"remove {report.kernels}, and see that g++ fits this CPU")
    remedy = _INSTALL if report.compiler is None else "mend the compiler, or the folder of the cache"
    return warning("kernels", f"none, torch computes alone: {report.problem}", remedy)


def _describe_crash(done: "subprocess.CompletedProcess[bytes]") -> Finding:
    """Torch, or a kernel, took the process down."""
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return error("kernels", f"{name} while they were tried", "remove the folder `kernels` of the cache")
    last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return error("torch", f"cannot be imported: {last}", "install engined again, in an environment of its own")
