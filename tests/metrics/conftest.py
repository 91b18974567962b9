"""One watched job of two ranks for all metrics tests: scraped while it trains, its event files and logs kept."""

import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from overlapwatch.log.reader import read_log
from overlapwatch.vocabulary import OUT_OF_STATISTICS
from tests.metrics.rows import of_rank, scraped
from tests.support import jobs

STEPS, PAUSE = 26, 22
JOB = """
    import sys, time
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    import overlapwatch
    from tests.support.training import SMALL_BUCKETS_MB, Net

    out, port, steps, pause = Path(sys.argv[1]), *map(int, sys.argv[2:])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    watch = overlapwatch.watch(
        model,
        log_dir=out / "run",
        line_every=10,  # metrics get every step all the same
        shadow_every=7,
        sinks=("stdout", f"prometheus:{port}", f"prometheus-file:{out}/{{rank}}.prom", f"tensorboard:{out}/tb"),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, steps + 1):
        while step == pause and dist.get_rank() == 1 and not (out / "go").exists():
            time.sleep(0.01)
        model(torch.ones(2, 48)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    time.sleep(0.2)
    dist.destroy_process_group()
"""


@dataclass(frozen=True, slots=True)
class WatchedJob:
    """What the job showed and left.

    Args:
        directory: with `tb`, and the logs in `run`.
        scrapes: what each rank served while rank 1 stood still before step `PAUSE`.
        files: what was in each rank's text file then.
        stdout, stderr: of each rank.
        rows: SUMMARY rows of each rank's log.
        run_id: as the logs have it.

    """

    directory: Path
    scrapes: tuple[str, str]
    files: tuple[str, str]
    stdout: tuple[str, ...]
    stderr: tuple[str, ...]
    rows: tuple[np.ndarray, np.ndarray]
    run_id: str

    def counted(self, rank: int, before: int = STEPS + 1) -> np.ndarray:
        """The rows in statistics of the steps before one."""
        rows = self.rows[rank]
        return rows[(rows["flags"] & OUT_OF_STATISTICS == 0) & (rows["step"] < before)]


def get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def when(job: jobs.RunningJob, port: int, rank: int, *, step: int, age: float) -> str:
    """Scrape a rank until it shows these numbers; `age`: of the oldest in flight, at least; 0: nothing is."""
    deadline = time.monotonic() + 200
    text = ""
    while time.monotonic() < deadline and job.processes[rank].poll() is None:
        try:
            text = get(port + rank)
        except (urllib.error.URLError, ConnectionError):
            text = ""  # not up yet
        seen = of_rank(scraped(text), rank)
        if (
            seen.get("overlapwatch_step_number") == step
            and bool(seen.get("overlapwatch_collectives_in_flight", -1)) == bool(age)
            and seen.get("overlapwatch_oldest_in_flight_seconds", 0) >= age
        ):
            return text
        time.sleep(0.1)
    job.wait(1).check()
    raise AssertionError(f"rank {rank} never showed it:\n{text}")


@pytest.fixture(scope="session")
def watched(tmp_path_factory) -> WatchedJob:
    out = tmp_path_factory.mktemp("metrics")
    port = jobs.free_port()
    arguments = [str(out), str(port), str(STEPS), str(PAUSE)]
    with jobs.start_ranks(JOB, 2, args=arguments) as job:
        scrapes = (
            when(job, port, 0, step=PAUSE - 1, age=0.5),  # it has begun the step, and waits in it
            when(job, port, 1, step=PAUSE - 2, age=0),  # it has not
        )
        files = tuple((out / f"{rank}.prom").read_text() for rank in (0, 1))
        (out / "go").touch()
        result = job.wait().check()
    logs = sorted((out / "run").glob("*.owlog"))
    contents = [read_log(path) for path in logs]
    return WatchedJob(
        out,
        scrapes,
        files,
        tuple(rank.stdout for rank in result.ranks),
        tuple(rank.stderr for rank in result.ranks),
        tuple(one.summaries for one in contents),
        contents[0].header.run_id,
    )
