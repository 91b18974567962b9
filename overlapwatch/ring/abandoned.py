"""Removes rings that killed jobs left behind, once nobody will ask for them any more.

In: the directories where rings lie. Out: how many were removed. A ring outlives its process so that a report can say
where a killed job stood; shared memory is scarce, so it does not outlive it for ever.
"""

import os
import re
import time
from pathlib import Path

KEEP_S = 2 * 24 * 3600
"""A dead process's ring is kept this long after it was made."""

_NAME = re.compile(r".+-rank\d+-(\d+)\.owring")


def remove_abandoned(directories: tuple[Path, ...], keep_s: float = KEEP_S) -> int:
    """Delete rings older than `keep_s` whose process is gone; return how many.

    Only files named as the watch names them, in directories of ours. One that cannot be removed is left.
    """
    removed = 0
    oldest = time.time() - keep_s
    for directory in directories:
        for path in directory.glob("*.owring") if directory.is_dir() else ():
            named = _NAME.fullmatch(path.name)
            try:
                if named and path.stat().st_mtime < oldest and not _alive(int(named[1])):
                    path.unlink()
                    removed += 1
            except OSError:
                continue
    return removed


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
