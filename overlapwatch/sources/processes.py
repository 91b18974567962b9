"""Whether a process on this host still runs, by its number and the time it began.

In: a process id and when its log was opened. Out: "runs", "stopped" or "gone". A later process with the same number
is not taken for it. It knows nothing of other hosts.
"""

import os
import re
from pathlib import Path
from typing import Literal

Fate = Literal["runs", "stopped", "gone"]
"""Stopped: by SIGSTOP or a debugger, and it goes on when told to."""

_START_SLACK_S = 5.0
"""A process seems to start up to this much after the log that it wrote: clocks are adjusted."""


def fate_of(pid: int, created_s: float) -> Fate:
    """Say what became of the process `pid` that was there at `created_s` (wall clock, s)."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return "gone"
    except PermissionError:
        pass  # it runs, as somebody else
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = re.search(r"^btime (\d+)$", Path("/proc/stat").read_text(), re.MULTILINE)
    except OSError:
        return "runs"  # no /proc here: the signal must do
    words = stat[stat.rindex(")") + 2 :].split()  # the name before may hold spaces
    if words[0] in {"Z", "X"}:
        return "gone"
    started_s = int(words[19]) / os.sysconf("SC_CLK_TCK") + (int(boot[1]) if boot else 0)
    if started_s >= created_s + _START_SLACK_S:
        return "gone"
    return "stopped" if words[0] in {"T", "t"} else "runs"
