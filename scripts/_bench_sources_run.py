"""Running things for the benchmark of sources: peers in environments of their own, commands with time and memory."""

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _bench import ROOT

CHILD = Path(__file__).with_name("_bench_sources_child.py")
DATA = Path(__file__).with_name("_bench_sources_data.py")

# DuckDB comes in the version for which its sqlite extension is on PyPI: nsys-ai would download it.
_DUCKDB = ("duckdb==1.5.5", "duckdb-extensions", "duckdb-extension-sqlite-scanner==1.5.5")
PEERS: dict[str, tuple[str, ...]] = {
    "hta": ("HolisticTraceAnalysis==0.5.0",),
    "traceinsight": ("traceinsight==0.6.1",),
    "nsysai": ("nsys-ai==0.3.0", *_DUCKDB),
    "readers": ("adbc-driver-sqlite", "nanoarrow", "connectorx", "pyarrow", "numpy", *_DUCKDB),
}


def python_of(peer: str) -> str:
    """Return the Python of a peer's environment, made when it is not there."""
    place = ROOT / f".venv-peers-{peer}"
    python = place / "bin" / "python"
    if not (place / "installed").exists():
        venv.create(place, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *PEERS[peer]]
        subprocess.run(command, check=True)
        (place / "installed").touch()
    return str(python)


@dataclass(frozen=True)
class Ran:
    """How a command went: wall and CPU time, the largest resident memory of a process in it, its output."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    output: str

    @property
    def told(self) -> dict[str, Any]:
        """What a child told in the last line of its output."""
        found: dict[str, Any] = json.loads(self.output.strip().splitlines()[-1])
        return found


def run(command: Sequence[str], home: Path) -> Ran:
    """Run a command to its end; one that fails ends the benchmark with what it said.

    Args:
        command: program and arguments.
        home: what it takes for the home directory: some keep caches there.

    """
    environment = {
        **os.environ,
        "HOME": str(home),
        "MPLCONFIGDIR": str(home),
        "PYTHONPATH": str(ROOT),
        # Peers were installed, and their modules compiled with it. Ours are at their first start.
        "PYTHONPYCACHEPREFIX": str(home / "compiled"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if command[0] != sys.executable:
        del environment["PYTHONPATH"], environment["PYTHONPYCACHEPREFIX"]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        for stream in (out, errors):
            stream.seek(0)
        output, said = out.read().decode(), errors.read().decode(errors="replace")
    if process.returncode:
        raise SystemExit(
            f"{' '.join(command)} failed with {process.returncode}:\n{output[-2000:]}{said[-2000:]}"
        )
    return Ran(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output)


def child(peer: str, what: str, path: Path, home: Path, **arguments: Any) -> Ran:
    """Run a program of `_bench_sources_child` in a peer's environment."""
    return run([python_of(peer), str(CHILD), what, str(path), json.dumps(arguments)], home)


def written(what: str, path: Path, size: int, *given: str) -> dict[str, Any]:
    """Write an input; return what `_bench_sources_data` told."""
    return run([sys.executable, str(DATA), what, str(path), str(size), *given], path.parent).told


def report(paths: Sequence[Path], home: Path, *options: str) -> Ran:
    """Run `overlapwatch report`."""
    return run([sys.executable, "-m", "overlapwatch", "report", *map(str, paths), *options], home)


def report_one_process(paths: Sequence[Path], home: Path) -> Ran:
    """Run `overlapwatch report` so that it reads one input after the other, in its own process."""
    program = (
        "import sys; from overlapwatch.commands import main, map_files; "
        "map_files.MANY_BYTES = 1 << 62; raise SystemExit(main(['report', *sys.argv[1:]]))"
    )
    return run([sys.executable, "-c", program, *map(str, paths)], home)
