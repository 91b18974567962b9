import pickle
from dataclasses import replace

from overlapwatch.accounting.ranks.sharing import Shared
from overlapwatch.accounting.ranks.table import rank_table
from overlapwatch.accounting.selection import Selection, choose
from overlapwatch.timeline.model import Recording
from overlapwatch.vocabulary import Name, NameKind
from tests.support.scenarios import collective, profile


def test_equal_names_of_other_processes_become_one() -> None:
    def one(members) -> object:
        groups = {1: Name(1, NameKind.GROUP, "default", members)}
        tl = profile([(0, 1)], [collective(1, 2, group=1)], groups=groups)
        recording = Recording(tl)
        return pickle.loads(pickle.dumps(rank_table(recording, choose(recording, Selection()))))

    shared = Shared()
    first, second, other = (shared(one(members)) for members in ((0, 1000), (0, 1000), (0, 2)))
    assert first.groups[1] is second.groups[1]
    assert other.groups[1] is not first.groups[1]
    assert other.groups[1].members == (0, 2)
    again = replace(second, groups=first.groups, names=first.names)
    assert again.records.tolist() == second.records.tolist()
