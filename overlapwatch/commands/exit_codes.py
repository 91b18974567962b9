"""Exit codes, and the one that closure checks ask for.

| code | meaning                                                     |
|------|-------------------------------------------------------------|
| 0    | done                                                        |
| 1    | the input was read, but its numbers do not add up           |
| 2    | what was asked cannot be done; one sentence on stderr       |
| 3    | `order`: the ranks issue different collectives              |
| 130  | interrupted                                                 |
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlapwatch.accounting.closure import Check

DONE = 0
DOES_NOT_ADD_UP = 1
USER_ERROR = 2
DIFFERS = 3
INTERRUPTED = 130


def of_checks(checks: "Iterable[Check]") -> int:
    """Return whether all checks hold, as an exit code."""
    return DONE if all(check.ok for check in checks) else DOES_NOT_ADD_UP
