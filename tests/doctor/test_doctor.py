"""`engined doctor` on this machine, whole and broken in the usual ways."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engined.doctor.compute import describe_compute
from engined.doctor.finding import Finding
from engined.doctor.machine import check_machine
from engined.doctor.service import check_service
from engined.doctor.variables import check_variables
from engined.protocol.compute_report import ComputeReport
from tests.end_to_end.server import Server


def run(runtime: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-m", "engined.cli.main", "doctor", *arguments],
        env=os.environ | {"XDG_RUNTIME_DIR": str(runtime)} | environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def findings(result: "subprocess.CompletedProcess[str]") -> dict[str, dict[str, Any]]:
    """By name."""
    assert result.stderr == ""
    return {finding["name"]: finding for section in json.loads(result.stdout).values() for finding in section}


def named(found: list[Finding], name: str) -> Finding:
    return next(finding for finding in found if finding.name == name)


def test_a_machine_that_serves(default_server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "engined"
    folder.mkdir(mode=0o700)
    (folder / "engined.sock").symlink_to(default_server.uds)
    result = run(tmp_path)
    assert result.returncode == 0, result.stdout
    lines = result.stdout.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "machine",
        "variables",
        "compute",
        "files",
        "service",
    ]
    assert len(lines) <= 40, "one screen"
    assert all(line.split()[0] in ("ok", "warning", "error", "remedy:") for line in lines if line.startswith(" "))
    assert f"{folder}/engined.sock answers, and is ready" in result.stdout
    daemons = next(line for line in lines if line.split()[1:2] == ["daemons"])
    assert str(default_server.pid) in daemons.replace(",", " ").split()


def test_json_names_the_path_of_each_part(tmp_path: Path) -> None:
    found = findings(run(tmp_path, "--json"))
    if shutil.which("g++") is None:
        pytest.skip("no compiler here")
    assert found["kernels"]["level"] == "ok" and found["kernels"]["text"].endswith(".so")
    flags = set(Path("/proc/cpuinfo").read_text().split())
    for part in ("linears", "attention"):
        assert ("bfloat16: AMX bf16" in found[part]["text"]) == ({"amx_bf16", "avx512_bf16"} <= flags)
        assert ("float32: AVX512" in found[part]["text"]) == ("avx512f" in flags)


def test_no_compiler(tmp_path: Path) -> None:
    result = run(tmp_path, "--json", PATH=str(tmp_path))
    found = findings(result)
    assert result.returncode == 0
    assert found["compiler"]["level"] == "warning" and "apt install g++" in found["compiler"]["remedy"]
    assert found["attention"]["text"] == "float32: torch, bfloat16: torch"


@pytest.mark.parametrize(
    ("torch", "name", "text"),
    [
        ("raise ImportError('libtorch.so: no such file')", "torch", "cannot be imported: ImportError: libtorch.so: no"),
        ("import os; os.kill(os.getpid(), 4)", "kernels", "SIGILL while they were tried"),
    ],
)
def test_torch_or_a_kernel_fails(tmp_path: Path, torch: str, name: str, text: str) -> None:
    (tmp_path / "torch.py").write_text(torch)
    result = run(tmp_path, "--json", PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    found = findings(result)
    assert found[name]["level"] == "error" and text in found[name]["text"] and found[name]["remedy"]
    assert found["PYTHONPATH"]["level"] == "warning"


def test_a_folder_of_sockets_that_is_open_to_others(tmp_path: Path) -> None:
    (tmp_path / "engined").mkdir()
    (tmp_path / "engined").chmod(0o755)
    result = run(tmp_path)
    assert result.returncode == 1
    assert "is not a folder that only this user can open" in result.stdout


def test_kernels_that_are_wrong_and_tiles_that_are_refused() -> None:
    report = ComputeReport(
        torch="2", compiler="/g++", kernels="/k.so", problem="wrong products", tiles="refused", linears={}, attention={}
    )
    found = describe_compute(report)
    assert named(found, "kernels").level == "error"
    assert named(found, "AMX").level == "warning" and "seccomp" in str(named(found, "AMX").remedy)


def test_a_small_machine(tmp_path: Path) -> None:
    """Half a CPU, without vectors, little memory, no huge pages."""
    for name, text in {
        "proc/cpuinfo": "model name\t: Old CPU\nflags\t\t: sse2\n",
        "proc/meminfo": "MemAvailable: 2097152 kB\n",
        "proc/self/cgroup": "0::/a\n",
        "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/a/memory.max": "524288000\n",
        "sys/fs/cgroup/a/memory.current": "104857600\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = check_machine(tmp_path)
    for name, text in {
        "cores": "the cgroup allows 0.5",
        "memory": "400 MiB free: limited by the cgroup, the machine has 2 GiB",
        "huge pages": "never",
    }.items():
        assert named(found, name).level == "warning" and text in named(found, name).text, name
        assert named(found, name).remedy
    assert "Old CPU" in named(found, "CPU").text


def test_variables_that_matter_and_others() -> None:
    [finding] = check_variables({"GOMP_CPU_AFFINITY": "0-1", "OMP_NUM_THREADS": "64", "OMP_PLACES": ""})
    assert (finding.level, finding.name, finding.remedy) == (
        "warning",
        "GOMP_CPU_AFFINITY",
        "unset GOMP_CPU_AFFINITY",
    )
    assert check_variables({"OMP_NUM_THREADS": "64"})[0].level == "ok"


def test_a_socket_that_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "engined").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "engined" / "engined.sock"))
    assert "nobody answers" in named(check_service(), "socket").text


def test_a_unit_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(
        "#!/bin/sh\ncase $1 in --user) echo LoadState=not-found;; *)"
        " printf 'LoadState=loaded\\nActiveState=failed\\nSubState=failed\\nResult=exit-code\\n';; esac\n"
    )
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found = check_service()
    assert named(found, "user unit").text == "none; `engined systemd install --user` makes one"
    unit = named(found, "system unit")
    assert (unit.level, unit.text) == ("warning", "failed (failed, exit-code)")
    assert unit.remedy == "journalctl -u engined.service says why"
