"""Real distributed jobs, started from a test and always ended by it.

In: a script (its text or its path), a world size, arguments, environment. Out: a `JobResult`: what every rank printed
and how it ended. Three ways to start the ranks, dearest first:

* `run_job`: torchrun, as users do; two extra processes that import torch.
* `run_ranks(..., fresh=True)`: one new interpreter per rank, `RANK`, `WORLD_SIZE`, `MASTER_*` set as torchrun would.
* `run_ranks`: the same, but each rank is forked from a process that has imported torch already (see `zygote`): half a
  second for a small job instead of five. A rank still is a process of its own that runs the script as `__main__` and ends as an
  interpreter ends. Use `fresh=True` when a variable must be set before torch is imported.

`start_ranks` gives the running job instead, for tests that kill a rank or read its files meanwhile.

No rank outlives its test: at the timeout every process is asked for its Python stacks (on its standard error), then
killed with all its children.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

import psutil

from tests.support import zygote

ROOT = Path(__file__).parents[2]
_POLL_S = 0.02
_GRACE_S = 5.0

Prefix = Callable[[int], Sequence[str]]
"""rank -> words to put before its command, e.g. `ip netns exec NAME`."""


@dataclass(frozen=True, slots=True)
class RankResult:
    """How one rank (or torchrun) ended. `returncode` is negative for a signal, as in subprocess."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended: one entry per process that was started (torchrun counts as one)."""

    ranks: tuple[RankResult, ...]
    seconds: float
    timed_out: bool

    @property
    def returncode(self) -> int:
        """The first returncode that is not 0, or 0."""
        return next((rank.returncode for rank in self.ranks if rank.returncode), 0)

    @property
    def stdout(self) -> str:
        """What all ranks printed, rank by rank."""
        return "".join(rank.stdout for rank in self.ranks)

    @property
    def stderr(self) -> str:
        """What all ranks wrote to standard error, rank by rank."""
        return "".join(rank.stderr for rank in self.ranks)

    def check(self) -> "JobResult":
        """Return self; raise AssertionError with everything that was printed unless every rank ended with 0."""
        if self.returncode or self.timed_out:
            how = "timed out" if self.timed_out else "failed"
            parts = [f"the job {how} after {self.seconds:.1f} s"]
            for number, rank in enumerate(self.ranks):
                parts.append(
                    f"--- {number}: returncode {rank.returncode}\n{rank.stdout}{rank.stderr}"
                )
            raise AssertionError("\n".join(parts))
        return self


class _Process(Protocol):
    """What a rank must be able to do, forked or not. `subprocess.Popen` is one."""

    pid: int

    def poll(self) -> int | None: ...


class RunningJob:
    """A job that was started. Use it as a context manager, so that it is ended whatever happens."""

    def __init__(self, directory: tempfile.TemporaryDirectory[str]) -> None:
        self.processes: list[_Process] = []
        self._directory = directory
        self._began = time.monotonic()
        self._timed_out = False
        self._result: JobResult | None = None

    def __enter__(self) -> "RunningJob":  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def output(self, rank: int) -> str:
        """What a rank has printed so far."""
        return self._path(rank, "out").read_text(errors="replace")

    def wait_for(self, rank: int, text: str, timeout_s: float = 60) -> None:
        """Wait until a rank has printed `text`; AssertionError when it ends or the time runs out before."""
        deadline = time.monotonic() + timeout_s
        while text not in self.output(rank):
            ended = self.processes[rank].poll() is not None
            if (ended and text not in self.output(rank)) or time.monotonic() > deadline:
                stderr = self._path(rank, "err").read_text(errors="replace")
                raise AssertionError(
                    f"rank {rank} {'ended' if ended else 'ran on'} without printing {text!r}:\n"
                    f"{self.output(rank)}{stderr}"
                )
            time.sleep(_POLL_S)

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to one rank."""
        os.kill(self.processes[rank].pid, number)

    def wait(self, timeout_s: float = 120) -> JobResult:
        """Wait until every rank has ended, or end them at the timeout, and say how it went."""
        deadline = time.monotonic() + timeout_s
        while any(process.poll() is None for process in self.processes):
            if time.monotonic() > deadline:
                self._timed_out = True
                break
            time.sleep(_POLL_S)
        return self._end()

    def _path(self, rank: int, what: str) -> Path:
        return Path(self._directory.name) / f"{rank}.{what}"

    def _end(self) -> JobResult:
        if self._result is None:
            _end_processes([process for process in self.processes if process.poll() is None])
            self._result = JobResult(
                tuple(
                    RankResult(
                        _returncode(process),
                        self._path(rank, "out").read_text(errors="replace"),
                        self._path(rank, "err").read_text(errors="replace"),
                    )
                    for rank, process in enumerate(self.processes)
                ),
                seconds=time.monotonic() - self._began,
                timed_out=self._timed_out,
            )
            self._directory.cleanup()
        return self._result


def run_job(
    script: str | Path,
    world: int = 2,
    *,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120,
    cwd: Path | None = None,
) -> JobResult:
    """Run a script under torchrun and wait for it. The result has one entry: torchrun's, with all ranks' output."""
    directory = tempfile.TemporaryDirectory(prefix="overlapwatch-job-")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(world), str(_script_path(script, directory.name)), *args]
    with RunningJob(directory) as job:
        job.processes.append(_popen(command, _environment(env), directory.name, 0, cwd))
        return job.wait(timeout_s)


def run_ranks(
    script: str | Path,
    world: int = 2,
    *,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120,
    cwd: Path | None = None,
    fresh: bool = False,
    preload: tuple[str, ...] = (),
    prefix: Prefix | None = None,
) -> JobResult:
    """Run a script on `world` ranks without torchrun and wait for all of them."""
    with start_ranks(
        script, world, args=args, env=env, cwd=cwd, fresh=fresh, preload=preload, prefix=prefix
    ) as job:
        return job.wait(timeout_s)


def start_ranks(
    script: str | Path,
    world: int = 2,
    *,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    fresh: bool = False,
    preload: tuple[str, ...] = (),
    prefix: Prefix | None = None,
) -> RunningJob:
    """Start a script on `world` ranks and return the running job.

    Args:
        script: a path, or the text of a script (anything with a line break).
        world: number of ranks.
        args: the script's arguments, the same on every rank.
        env: variables added to the environment.
        cwd: working directory; the repository's root when None.
        fresh: start a new interpreter per rank rather than fork one that has imported torch.
        preload: modules that the process to be forked has imported too, for those that take seconds.
        prefix: words before each rank's command; implies `fresh`.
    """
    directory = tempfile.TemporaryDirectory(prefix="overlapwatch-job-")
    path = _script_path(script, directory.name)
    job = RunningJob(directory)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **(env or {})}
    try:
        for rank in range(world):
            variables = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            variables |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
            environment = _environment(variables)
            if fresh or prefix is not None:
                words = list(prefix(rank)) if prefix is not None else []
                command = [*words, sys.executable, str(path), *args]
                process: _Process = _popen(command, environment, directory.name, rank, cwd)
            else:
                for what in ("out", "err"):
                    Path(directory.name, f"{rank}.{what}").touch()
                process = zygote.fork_rank(
                    zygote.Rank(
                        script=str(path),
                        args=list(args),
                        env=environment,
                        cwd=str(cwd or ROOT),
                        stdout=f"{directory.name}/{rank}.out",
                        stderr=f"{directory.name}/{rank}.err",
                    ),
                    preload,
                )
            job.processes.append(process)
    except BaseException:
        job.__exit__(None, None, None)
        raise
    return job


def free_port() -> int:
    """Return a port nobody listens on, below the range from which the kernel gives ports to clients."""
    while True:
        port = random.randint(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _script_path(script: str | Path, directory: str) -> Path:
    if isinstance(script, Path) or "\n" not in script:
        return Path(script).resolve(strict=True)
    path = Path(directory) / "script.py"
    path.write_text(textwrap.dedent(script))
    return path


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    # A test's ranks must see only what the test says: no settings of the person who runs it.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OVERLAPWATCH_")}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    return environment | dict(extra or {})


def _popen(
    command: Sequence[str],
    environment: Mapping[str, str],
    directory: str,
    rank: int,
    cwd: Path | None,
) -> "subprocess.Popen[bytes]":
    with (
        open(f"{directory}/{rank}.out", "wb") as stdout,
        open(f"{directory}/{rank}.err", "wb") as stderr,
    ):
        return subprocess.Popen(
            command,
            env=environment,
            cwd=cwd or ROOT,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )


def _end_processes(processes: Sequence[_Process]) -> None:
    """End processes and all that they started: SIGABRT makes Python print its stacks, SIGKILL makes sure."""
    # torchrun puts its workers in sessions of their own, so a process group would miss them.
    family: list[psutil.Process] = []
    for process in processes:
        try:
            parent = psutil.Process(process.pid)
            family += [*parent.children(recursive=True), parent]
        except psutil.NoSuchProcess:
            continue
    for number, seconds in ((signal.SIGABRT, 1.0), (signal.SIGKILL, _GRACE_S)):
        for member in family:
            try:
                member.send_signal(number)
            except psutil.NoSuchProcess:
                continue
        deadline = time.monotonic() + seconds
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def _returncode(process: _Process) -> int:
    code = process.poll()
    assert code is not None, f"process {process.pid} survived SIGKILL"
    return code
