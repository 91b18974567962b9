"""Which rank of which run metrics are of, and the check that a library is there.

In: what the watch knows of its process. Out: labels; one sentence where a library is missing. Libraries are looked for
here, not imported (of a nested module, the packages around it are).
"""

from dataclasses import dataclass
from importlib.util import find_spec

from overlapwatch.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class RunOfRank:
    """One process of a job.

    Args:
        rank, world: in the job.
        local_rank: on its host; the rank, where no launcher says.
        run_id: what all ranks of this run share, and no other run.

    """

    rank: int
    local_rank: int
    world: int
    run_id: str

    @property
    def labels(self) -> dict[str, str]:
        """What tells this rank's series from others'."""
        return {"rank": str(self.rank), "run_id": self.run_id}

    @property
    def name(self) -> str:
        """A name for its files, as its log has it."""
        return f"rank{self.rank}-{self.run_id}"


def need(module: str, package: str, extra: str) -> None:
    """Check that a module could be imported.

    Raises:
        ConfigurationError: it is not installed.

    """
    try:
        there = find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is not there
        there = False
    if not there:
        raise ConfigurationError(
            f"the sink {extra} needs {package}, which is not installed: "
            f'pip install "overlapwatch[{extra}]"'
        )
