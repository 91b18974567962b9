"""Which rank a process is, as far as the export tells.

In: the file's name, its processes, NCCL's initialisation calls. Out: `Ranks`. A process's place in the largest
communicator is its rank only if that communicator holds every process of the file and there are
several: in a file of one process it might as well be a small group. Such a file may have the rank
in its name (`rank3.sqlite`, `profile_rank_3.nsys-rep`). Anything else is not known.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from overlapwatch.sources.nsight.calls import Communicator

_IN_NAME = re.compile(r"(?i)(?<![a-z])rank[_.-]?(\d{1,6})(?!\d)")


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks by process (`globalPid >> 24`), the size of the job, None where not known."""

    by_process: Mapping[int, int]
    world: int | None

    def rank(self, process: int) -> int | None:
        """Return the rank of a process."""
        return self.by_process.get(process)

    def of_members(self, communicator: Communicator) -> tuple[int, ...]:
        """Return the ranks of a communicator's members in its own order; none unless all are known."""
        found = {
            member.rank: self.by_process[process]
            for process, member in communicator.members.items()
            if process in self.by_process
        }
        whole = communicator.ranks and sorted(found) == list(range(communicator.ranks))
        return tuple(found[place] for place in range(communicator.ranks)) if whole else ()


def ranks_of(
    file_name: str,
    processes: Sequence[int],
    communicators: Mapping[int, Communicator],
) -> Ranks:
    """Return what is known of ranks."""
    if len(processes) > 1:
        largest = max(communicators.values(), key=lambda one: one.ranks, default=None)
        if largest is not None and set(processes) <= set(largest.members):
            found = {process: largest.members[process].rank for process in processes}
            good = all(0 <= rank < largest.ranks for rank in found.values())
            if good and len(set(found.values())) == len(found):
                return Ranks(found, largest.ranks)
        return Ranks({}, None)
    named = _IN_NAME.search(file_name)
    if named and processes:
        return Ranks({processes[0]: int(named[1])}, None)
    return Ranks({}, None)
