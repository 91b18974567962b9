"""A job ends while a thread of the backend is about to call us: neither may wait for the other."""

import pytest

from tests.support import jobs

pytestmark = pytest.mark.e2e

JOB = """
    import faulthandler, sys, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    import overlapwatch
    from overlapwatch.hooks.times import HostTimes
    from tests.support.training import Net

    faulthandler.dump_traceback_later(40, exit=True)  # a hang holds the GIL: no handler in Python would run
    how = sys.argv[2]
    told = HostTimes._done

    def told_late(self, slot, future):
        time.sleep(0.2)  # as on a busy machine: the backward is over, its last callback is not
        told(self, slot, future)

    HostTimes._done = told_late
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Net())
    watch = overlapwatch.watch(model, mode=sys.argv[1], sinks=("none",), log_dir=sys.argv[3])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 48)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    del model, optimizer
    if how == "close, destroy":
        watch.close()
    if how != "forget":
        dist.destroy_process_group()
    if how == "destroy, close":
        watch.close()
    print("over", flush=True)
"""


@pytest.mark.parametrize("how", ["close, destroy", "destroy, close", "destroy", "forget"])
@pytest.mark.parametrize("mode", ["passive", "hook"])
def test_a_late_callback_does_not_hang_the_end_of_a_job(mode: str, how: str, tmp_path) -> None:
    result = jobs.run_ranks(JOB, 2, args=[mode, how, str(tmp_path)], timeout_s=60).check()
    assert result.stdout.count("over") == 2
