"""Names of kernels -> which lane each belongs to, and what kind of communication it is.

In: names, each once (a source makes its names unique first: a trace of a million kernels has some
hundred), and patterns a user adds. Out: one class and one kind a name. The rules are data
(`overlapwatch.rules`). It does not know streams, times, or what a name that no rule knows does:
that is computation, and `none_recognised` is what a source says when no name was communication.

| name                                            | class         | kind      |
|-------------------------------------------------|---------------|-----------|
| ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)   | COMMUNICATION | AllReduce |
| ncclDevKernel_Generic_1(...)                    | COMMUNICATION | Unknown   |
| MatmulAllReduce                                 | FUSED         | AllReduce |
| ampere_sgemm_128x64_nn                          | COMPUTE       | Unknown   |
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from overlapwatch.errors import ConfigurationError
from overlapwatch.rules import KIND_WORDS, RULES, KernelClass, Rule
from overlapwatch.timeline.model import Unknown
from overlapwatch.vocabulary import CollectiveKind

USER_RULE = "--comm-pattern"
"""Where a class comes from that a user's pattern decided."""

_ANONYMOUS = "(anonymous namespace)"


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """What names are; row i is about the i-th name.

    Args:
        kernel: KernelClass.
        kind: CollectiveKind; UNKNOWN where the name does not tell, and for computation.
        because: whose rule decided; "" where none did and the name is computation.
    """

    kernel: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    because: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.kernel)


def classify(names: Sequence[str], patterns: Sequence[re.Pattern[str]] = ()) -> Classes:
    """Return the class and kind of each name.

    Args:
        names: names of kernels, best each once.
        patterns: a name in which one of them is found is communication, whatever the rules say.
    """
    kernel = np.zeros(len(names), np.uint8)
    kind = np.zeros(len(names), np.uint8)
    because = [""] * len(names)
    for index, raw in enumerate(names):
        if any(pattern.search(raw) for pattern in patterns):
            kernel[index], kind[index] = KernelClass.COMMUNICATION, kind_of(_function(raw))
            because[index] = USER_RULE
            continue
        name = raw.replace(_ANONYMOUS, "{anonymous}")
        for pattern, rule in _compiled():
            if pattern.search(name):
                kernel[index] = rule.kernel
                if rule.kernel != KernelClass.COMPUTE:
                    kind[index] = rule.kind or kind_of(_function(name))
                because[index] = rule.source
                break
    return Classes(kernel, kind, tuple(because))


def kind_of(text: str) -> CollectiveKind:
    """Return the kind that the name of an operation tells: `_allgather_base`, `nccl:all_to_all`, ...

    UNKNOWN when it tells none.
    """
    plain = text.replace("_", "").lower()
    for word, kind in KIND_WORDS:
        if word in plain:
            return kind
    return CollectiveKind.UNKNOWN


def compile_patterns(texts: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    """Return a user's patterns, ready for `classify`.

    Raises:
        ConfigurationError: one is not a regular expression; the message says which and why.
    """
    return tuple(_pattern(text) for text in texts)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigurationError(f"{text!r} is not a regular expression: {error}") from None


def none_recognised(names: Sequence[str]) -> Unknown:
    """Return what to say when no kernel of a timeline was recognised as communication."""
    seen = f"none of {len(names)} kernel names" if names else "no kernel was recorded: none"
    return Unknown(
        "communication",
        f"{seen} is known to communicate; {USER_RULE} adds names",
    )


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], Rule], ...]:
    return tuple((re.compile(rule.pattern), rule) for rule in RULES)


def _function(name: str) -> str:
    """Return the name without its arguments and template arguments, which have words of their own.

    void a::(anonymous namespace)::multimem_all_reduce<x>(x*) -> void a::::multimem_all_reduce
    """
    return re.split(r"[<(]", name.replace(_ANONYMOUS, ""), maxsplit=1)[0]
