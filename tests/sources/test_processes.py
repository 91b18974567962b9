import os
import signal
import subprocess
import sys
import time

import pytest

from overlapwatch.sources.processes import fate_of


@pytest.fixture
def process():
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield started
    started.kill()
    started.communicate()


def test_it_runs_is_stopped_and_is_gone(process):
    assert fate_of(process.pid, time.time()) == "runs"
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert fate_of(process.pid, time.time()) == "stopped"
    process.send_signal(signal.SIGCONT)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert fate_of(process.pid, time.time()) == "gone"  # nobody has asked how it ended
    process.wait()
    assert fate_of(process.pid, time.time()) == "gone"


def test_a_later_process_with_the_same_number_is_another_one(process):
    assert fate_of(process.pid, time.time() - 3600) == "gone"


def test_a_number_that_no_process_can_have():
    assert fate_of(1 << 40, time.time()) == "gone"
