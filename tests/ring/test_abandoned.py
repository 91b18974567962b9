import os
import subprocess
import sys

from overlapwatch.ring.abandoned import remove_abandoned


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def put(directory, name, age_s):
    path = directory / name
    path.write_bytes(b"x")
    then = path.stat().st_mtime - age_s
    os.utime(path, (then, then))
    return path


def test_only_old_rings_of_dead_processes_go(tmp_path):
    dead = dead_pid()
    old = put(tmp_path, f"ab12-rank0-{dead}.owring", 1000)
    young = put(tmp_path, f"ab12-rank1-{dead}.owring", 10)
    living = put(tmp_path, f"ab12-rank2-{os.getpid()}.owring", 1000)
    foreign = put(tmp_path, "something-else.owring", 1000)
    assert remove_abandoned((tmp_path, tmp_path / "absent"), keep_s=100) == 1
    assert not old.exists()
    assert young.exists()
    assert living.exists()
    assert foreign.exists()
