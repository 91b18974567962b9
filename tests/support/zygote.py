"""A process that has imported torch and forks a rank on request, so that a test's ranks start at once.

In: one `Rank` per request, as a line of JSON on standard input. Out: `["started", pid]` and `["ended", pid, code]`
lines. A forked rank leaves the serving loop and runs its script as `__main__`; it ends as any interpreter does, exit
handlers and daemon threads included. The zygote ends when its standard input closes, so it cannot outlive pytest.

Nothing of overlapwatch is imported here: a rank imports the code under test itself.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Rank:
    """What to run. `stdout` and `stderr` are the paths of files to write; `env` is the whole environment."""

    script: str
    args: list[str]
    env: dict[str, str]
    cwd: str
    stdout: str
    stderr: str


@dataclass(slots=True)
class ForkedRank:
    """A rank that was forked: `subprocess.Popen` as far as the tests need it."""

    pid: int
    client: "_Client"
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the returncode, or None while the rank runs."""
        if self.returncode is None and self.client in _clients.values():
            self.client.read()
        return self.returncode


class _Client:
    """The tests' end of the two pipes."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, *preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is pytest's business, which then ends the ranks
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")])
                ),
                "OMP_NUM_THREADS": "1",
                "PYTHONFAULTHANDLER": "1",
                "PYTHONUNBUFFERED": "1",
            },
        )
        self.started: list[int] = []
        self.running: dict[int, ForkedRank] = {}
        self.rest = b""

    def fork(self, rank: Rank) -> ForkedRank:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asdict(rank)).encode() + b"\n")
        self.process.stdin.flush()
        while not self.started:
            self.read(wait_s=None)
        return self.running[self.started.pop()]

    def read(self, wait_s: float | None = 0) -> None:
        assert self.process.stdout is not None
        stream = self.process.stdout.fileno()
        while select.select([stream], [], [], wait_s)[0]:
            wait_s = 0
            data = os.read(stream, 65536)
            if not data:
                raise RuntimeError(f"the zygote ended with {self.process.wait()}")
            *lines, self.rest = (self.rest + data).split(b"\n")
            for line in lines:
                what, pid, *code = json.loads(line)
                if what == "started":
                    self.running[pid] = ForkedRank(pid, self)
                    self.started.append(pid)
                else:
                    self.running.pop(pid).returncode = code[0]

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


_clients: dict[tuple[str, ...], _Client] = {}


def fork_rank(rank: Rank, preload: tuple[str, ...] = ()) -> ForkedRank:
    """Fork one rank from a zygote that has imported these modules too; it is started at the first call."""
    if not _clients:
        atexit.register(shut_down)
    if preload not in _clients:
        _clients[preload] = _Client(preload)
    return _clients[preload].fork(rank)


def shut_down() -> None:
    """End the zygotes. Their ranks must have ended."""
    while _clients:
        _clients.popitem()[1].close()


def _serve() -> Rank:
    """Fork ranks until standard input closes. Returns in each forked rank only, with what it shall run."""
    running: set[int] = set()
    requests = sys.stdin.buffer
    while True:
        readable = select.select([requests], [], [], _POLL_S if running else None)[0]
        # One request is answered before the next is sent, so nothing waits unseen in the buffer.
        line = requests.readline() if readable else b""
        if readable and not line:
            sys.exit(0)
        if line:
            pid = os.fork()
            if pid == 0:
                return Rank(**json.loads(line))
            running.add(pid)
            print(json.dumps(["started", pid]), flush=True)
        for pid in list(running):
            if (ended := os.waitpid(pid, os.WNOHANG))[0]:
                running.remove(pid)
                code = os.waitstatus_to_exitcode(ended[1])
                print(json.dumps(["ended", pid, code]), flush=True)


def _become(rank: Rank) -> None:
    """Take on everything that a new interpreter would have been given, and run the script."""
    os.setsid()
    for target, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, rank.stdout, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, rank.stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, target)
        os.close(opened)
    os.chdir(rank.cwd)
    os.environ.clear()
    os.environ.update(rank.env)
    sys.argv = [rank.script, *rank.args]
    sys.path[0] = str(Path(rank.script).parent)
    sys.path[1:1] = [
        p for p in rank.env.get("PYTHONPATH", "").split(os.pathsep) if p not in sys.path
    ]
    runpy.run_path(rank.script, run_name="__main__")


if __name__ == "__main__":
    # What every rank would import first, and what its first optimizer step imports.
    import torch._dynamo
    import torch.distributed
    import torch.distributed.fsdp
    from gloo import let_gloo_go  # this file runs as a script, beside it

    for name in sys.argv[1:]:
        importlib.import_module(name)
    let_gloo_go(torch.distributed)
    gc.freeze()  # the ranks share these objects' pages, and end faster for not visiting them
    _become(_serve())
