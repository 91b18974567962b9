"""The helpers that every test on real jobs leans on: that they report what happened, and leave nothing behind."""

import signal

import psutil
import pytest

from tests.support import jobs

COLLECTIVE = """
    import atexit, os
    import torch
    import torch.distributed as dist

    atexit.register(lambda: print("exit handlers ran"))
    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(total)
    print(f"total {total.item()} threads {torch.get_num_threads()} note {os.environ['NOTE']}")
    dist.destroy_process_group()
"""
SLEEP = "import time\nprint('asleep', flush=True)\ntime.sleep(600)\n"


@pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])
def test_ranks_find_each_other_and_end_like_an_interpreter(fresh):
    result = jobs.run_ranks(COLLECTIVE, 2, env={"NOTE": "hi"}, fresh=fresh).check()
    for rank in result.ranks:
        assert rank.stdout == "total 3 threads 1 note hi\nexit handlers ran\n"


@pytest.mark.e2e
def test_torchrun_runs_the_same_script():
    result = jobs.run_job(COLLECTIVE, 2, env={"NOTE": "hi"}).check()
    assert result.stdout.count("total 3 threads 1 note hi") == 2


@pytest.mark.parametrize(
    ("script", "code"),
    [("import sys\nsys.exit(3)\n", 3), ("raise ValueError('what')\n\n", 1)],
    ids=["exit", "exception"],
)
def test_a_failure_is_told_with_its_output(script, code):
    result = jobs.run_ranks(script, 1)
    assert result.returncode == code
    with pytest.raises(AssertionError, match=f"failed after .*\n--- 0: returncode {code}"):
        result.check()


def test_a_job_that_hangs_is_ended_and_shows_where_it_was():
    result = jobs.run_ranks(SLEEP, 2, timeout_s=0.5)
    assert result.timed_out
    assert result.returncode == -signal.SIGABRT
    assert 'script.py", line 3' in result.stderr
    with pytest.raises(AssertionError, match="timed out"):
        result.check()


def test_a_rank_can_be_killed_and_no_process_is_left():
    with jobs.start_ranks(SLEEP, 2) as job:
        job.wait_for(0, "asleep")
        job.kill(0)
        while job.processes[0].poll() is None:
            pass
        assert job.processes[1].poll() is None
        pids = [process.pid for process in job.processes]
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_waiting_for_words_that_never_come_says_so():
    with (
        jobs.start_ranks("print('something else')\n", 1) as job,
        pytest.raises(AssertionError, match="ended without printing 'asleep'"),
    ):
        job.wait_for(0, "asleep")
