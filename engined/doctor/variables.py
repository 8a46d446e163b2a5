"""Variables of the environment that make native libraries compute otherwise than they would. What the daemon sets for
its own processes (`process.environment`) wins over the user's, and is no trap."""

from collections.abc import Mapping

from engined.doctor.finding import Finding, ok, warning

_PINS = "it ties threads to cores: two daemons, or two ranks, would meet on the same ones"
_FEWER = "it takes threads from the products of a step; --num-threads is the setting for it"
_TRAPS = {
    "GOMP_CPU_AFFINITY": _PINS,
    "KMP_AFFINITY": _PINS,
    "OMP_PLACES": _PINS,
    "OMP_PROC_BIND": _PINS,
    "OMP_DYNAMIC": _FEWER,
    "OMP_THREAD_LIMIT": _FEWER,
    "MKL_NUM_THREADS": _FEWER,
    "OMP_WAIT_POLICY": "threads that wait take cores from those that work",
    "ONEDNN_MAX_CPU_ISA": "it forbids instructions that this CPU may have",
    "DNNL_MAX_CPU_ISA": "it forbids instructions that this CPU may have",
    "ATEN_CPU_CAPABILITY": "it forbids instructions that this CPU may have",
    "LD_PRELOAD": "a second OpenMP library or another allocator may come with it",
    "MALLOC_CHECK_": "it makes every allocation slow",
    "MALLOC_PERTURB_": "it makes every allocation slow",
    "PYTHONMALLOC": "it makes every allocation slow",
    "PYTHONDEVMODE": "it makes Python slow",
    "PYTHONPATH": "modules there take the place of installed ones",
}


def check_variables(environ: Mapping[str, str]) -> list[Finding]:
    """A warning for each that is set, else one line that says so."""
    found = [
        warning(name, f"is set to {environ[name]!r}: {why}", f"unset {name}")
        for name, why in _TRAPS.items()
        if environ.get(name)
    ]
    return found or [ok("variables", "none that changes how libraries compute")]
