"""What each rank of a job told of each of its cases, for tests that look at one case each."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support import jobs

Told = dict[str, Any]


class Ranks:
    """What each rank told, by name; whatever went wrong fails the tests of that name only, and the job runs once."""

    def __init__(self, found: Mapping[str, list[Told]], ended: Sequence[jobs.RankResult]) -> None:
        self._found, self._ended = found, ended

    def __getitem__(self, name: str) -> list[Told]:
        ranks = self._found.get(name, [])
        for rank in ranks:
            assert "raised" not in rank, rank["raised"]
        assert len(ranks) == 2, "".join(rank.stderr for rank in self._ended)
        assert [rank.returncode for rank in self._ended] == [0, 0]
        return ranks
