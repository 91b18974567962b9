"""NVTX rows -> named ranges by thread, and which of them enclose a moment of that thread.

In: `Tables`. Out: `Ranges`: push/pop and start/end ranges and marks (a mark is a range without length)
with their process, thread, domain and name; rows that are none are counted. A name is a registered
string or a text; in a named domain it is `domain:name`. NCCL's own ranges are API calls, told apart
by domain and name.

The ranges around a moment are found by depth, since the push/pop ranges of one thread nest: at each
depth the last one begun is the only one that can be open.

    depth 0   step 0-10 ............      at 7: step, layer 2
    depth 1     layer 1 1-4  layer 2 5-9
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlapwatch.sources.nsight.names import distinct, folded, strings
from overlapwatch.sources.nsight.tables import MISSING, Tables, text
from overlapwatch.timeline.model import I64, Skipped

TABLE = "NVTX_EVENTS"
_MARK, _PUSH_POP, _START_END, _DOMAIN = 34, 59, 60, 75
_DEPTH_LIMIT = 256
_COLUMNS = ("start", "end", "eventType", "globalTid", "textId", "domainId")


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Ranges, one array a column, in the order of the export.

    Args:
        start, end: ns of the session.
        thread: globalTid; the process is `thread >> 24`.
        domain: number of the domain within the process, 0 for the default one.
        name: index into `names`, -1 without a name.
        nested: a push/pop range: it takes part in its thread's stack.
        row: its row in the export.
        names: texts, as `domain:name` in a named domain.
        plain: texts without the domain.
        skipped: rows that are no ranges, and why.
    """

    start: I64
    end: I64
    thread: I64
    domain: I64
    name: I64
    nested: NDArray[np.bool_]
    row: I64
    names: tuple[str, ...]
    plain: tuple[str, ...]
    skipped: tuple[Skipped, ...]

    def __len__(self) -> int:
        return len(self.start)


def read_ranges(tables: Tables) -> Ranges:
    """Return all ranges and marks of the file."""
    found = tables.integers(TABLE, _COLUMNS)
    codes, texts = tables.coded(TABLE, "text", folded)
    rows = min(len(found["start"]), len(codes))  # they differ where one read met damage earlier
    columns = {name: column[:rows] for name, column in found.items()}
    codes = codes[:rows]
    kind, start, end = columns["eventType"], columns["start"], columns["end"]
    if "eventType" not in tables.columns(TABLE):
        kind = np.full(rows, _PUSH_POP, np.int64)
    domain = np.where(columns["domainId"] == MISSING, 0, columns["domainId"])
    domains = _domain_names(columns, kind, domain, codes, texts, tables)

    is_mark = kind == _MARK
    is_range = (kind == _PUSH_POP) | (kind == _START_END)
    end = np.where(is_mark, start, end)
    timed = start != MISSING
    closed = end != MISSING
    good = (is_mark | is_range) & timed & closed & (end >= start)
    skipped = (
        ("never closed", int((is_range & timed & ~closed).sum())),
        ("they close before they open", int((is_range & timed & closed & (end < start)).sum())),
        ("their start is not known", int(((is_range | is_mark) & ~timed).sum())),
    )
    chosen = np.flatnonzero(good)
    name, names, plain = _named(columns, domain, codes, texts, domains, chosen, tables)
    return Ranges(
        start=start[chosen],
        end=end[chosen],
        thread=columns["globalTid"][chosen],
        domain=domain[chosen],
        name=name,
        nested=kind[chosen] == _PUSH_POP,
        row=chosen,
        names=names,
        plain=plain,
        skipped=tuple(Skipped("NVTX ranges", count, why) for why, count in skipped if count),
    )


def _domain_names(
    columns: dict[str, I64],
    kind: I64,
    domain: I64,
    codes: I64,
    texts: list[str],
    tables: Tables,
) -> dict[tuple[int, int], str]:
    """Return the name of each (process, domain) whose creation was recorded."""
    made = np.flatnonzero(kind == _DOMAIN)
    registered = strings(tables, columns["textId"][made])
    names = {}
    for row in made.tolist():
        words = (
            texts[codes[row]]
            if codes[row] >= 0
            else registered.get(int(columns["textId"][row]), "")
        )
        names[int(columns["globalTid"][row]) >> 24, int(domain[row])] = words
    return names


def _named(
    columns: dict[str, I64],
    domain: I64,
    codes: I64,
    texts: list[str],
    domains: dict[tuple[int, int], str],
    chosen: I64,
    tables: Tables,
) -> tuple[I64, tuple[str, ...], tuple[str, ...]]:
    """Return the name of each chosen row as an index, and the texts, with and without the domain."""
    ids, place = distinct(columns["textId"][chosen])
    registered = strings(tables, ids)
    # One table of plain texts: those in the rows first, then the registered ones.
    table = dict.fromkeys(texts)
    lookup = {words: number for number, words in enumerate(table)}
    registered_at = []
    for number in ids.tolist():
        words = text(folded(registered.get(number, "").encode()))
        registered_at.append(lookup.setdefault(words, len(lookup)) if words else -1)
    told = codes[chosen]
    from_ids = np.array(registered_at, np.int64)[place] if len(ids) else np.empty(0, np.int64)
    plain_at = np.where(told >= 0, told, from_ids)
    plain = list(lookup)
    if not domains:
        return plain_at, tuple(plain), tuple(plain)
    process, process_at = distinct(columns["globalTid"][chosen] >> 24)
    names, out = list(plain), plain_at.copy()
    known = {word: number for number, word in enumerate(names)}
    bare = list(plain)
    for (owner, number), title in domains.items():
        where = np.flatnonzero(process == owner)
        if not title or not len(where) or number == 0:
            continue
        mine = np.flatnonzero(
            (process_at == where[0]) & (domain[chosen] == number) & (plain_at >= 0)
        )
        for text_at in np.unique(plain_at[mine]).tolist():
            full = f"{title}:{plain[text_at]}"
            if full not in known:
                known[full] = len(names)
                names.append(full)
                bare.append(plain[text_at])
            out[mine[plain_at[mine] == text_at]] = known[full]
    return out, tuple(names), tuple(bare)


def enclosing(
    ranges: Ranges, chosen: NDArray[np.bool_], thread: I64, moment: I64
) -> list[tuple[int, ...]]:
    """Return the ranges open at each moment on its thread, outermost first, as name indices.

    Args:
        ranges: all ranges.
        chosen: which of them take part; those that are not `nested` never do.
        thread: globalTid of each moment.
        moment: ns.
    """
    stacks: list[list[int]] = [[] for _ in range(len(moment))]
    usable = chosen & ranges.nested & (ranges.end > ranges.start) & (ranges.name >= 0)
    usable &= np.isin(ranges.thread, np.unique(thread))
    for one in np.unique(thread).tolist():
        rows = np.flatnonzero(usable & (ranges.thread == one))
        asked = np.flatnonzero(thread == one)
        if not len(rows):
            continue
        rows = rows[np.lexsort((-ranges.end[rows], ranges.start[rows]))]
        start, end = ranges.start[rows], ranges.end[rows]
        closed = np.searchsorted(np.sort(end), start, side="right")
        depth = np.clip(np.arange(len(rows)) - closed, 0, _DEPTH_LIMIT)
        for level in range(int(depth.max()) + 1):
            here = np.flatnonzero(depth == level)
            last = np.searchsorted(start[here], moment[asked], side="right") - 1
            found = last >= 0
            found[found] = end[here[last[found]]] > moment[asked[found]]
            for at, row in zip(
                asked[found].tolist(), rows[here[last[found]]].tolist(), strict=True
            ):
                stacks[at].append(int(ranges.name[row]))
    return [tuple(stack) for stack in stacks]
