"""Real FSDP2 runs under several settings: what is forecast from one issues and holds what the others then do."""

import json

import pytest

from overlapwatch.commands import main
from overlapwatch.sources import open_trace
from overlapwatch.whatif.fsdp2 import fsdp2_forecast
from overlapwatch.whatif.fsdp2_program import AS_RECORDED, Setting, chain_of, order
from overlapwatch.whatif.fsdp2_recorded import read_rank
from tests.support import jobs

pytestmark = pytest.mark.e2e

SETTINGS = ["0-0-True", "1-2-True", "3-0-True", "2-0-False"]

JOB = """
    import sys, time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    import overlapwatch

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layer = nn.Linear(64, width)
            self.back = nn.Linear(width, 64)

        def forward(self, x):
            time.sleep(0.02)
            return x + self.back(self.layer(x).relu())

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(64, 64)
            self.blocks = nn.Sequential(*[Block(w) for w in (600, 200, 400, 300, 500)])

        def forward(self, x):
            return self.blocks(self.first(x))

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for setting in sys.argv[2].split(","):
        forward, backward, reshard = setting.split("-")
        torch.manual_seed(0)
        model = Net()
        blocks = list(model.blocks)
        for block in blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard == "True")
        fully_shard(model, mesh=mesh)
        model._set_unshard_async_op(True)
        for place, block in enumerate(blocks):
            block.set_modules_to_forward_prefetch(blocks[place + 1 : place + 1 + int(forward)])
            block.set_modules_to_backward_prefetch(blocks[max(0, place - int(backward)) : place][::-1])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        watch = overlapwatch.watch(model, log_dir=f"{sys.argv[1]}/{setting}", sinks=("none",), shadow_every=0)
        for _ in range(4):
            model(torch.ones(4, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        watch.close()
    dist.destroy_process_group()
"""


def key(text: str) -> Setting:
    forward, backward, reshard = text.split("-")
    return Setting(int(forward), int(backward), reshard == "True")


def test_a_forecast_issues_and_holds_what_the_setting_then_does(tmp_path, capsys):
    jobs.run_ranks(JOB, 2, args=[str(tmp_path), ",".join(SETTINGS)], timeout_s=120).check()
    base = open_trace(tmp_path / SETTINGS[0])
    first = read_rank(base[0].timeline)
    step = first.steps[max(first.steps)]
    forecast = fsdp2_forecast(base, [0, 1, 2, 3], [0, 2])
    assert forecast.ranks == 2
    assert [check for check in forecast.checks() if not check.ok] == []
    for text in SETTINGS:
        wanted = key(text)
        recordings = open_trace(tmp_path / text)
        measured = fsdp2_forecast(recordings, [wanted[0]], [wanted[1]], [wanted[2]])
        assert [check for check in measured.checks() if not check.ok] == []
        (row,) = [one for one in forecast.settings if _is(one, wanted)]
        # In the other run's own words: the very same all-gathers, in the same places.
        own = read_rank(recordings[0].timeline)
        seen = order(own.steps[max(own.steps)], AS_RECORDED, chain_of(own), own.outermost)
        said = order(step, wanted, chain_of(first), first.outermost)
        assert _without_frees(said.shape) == _without_frees(seen.shape)
        assert row.peak_bytes == measured.recorded.peak_bytes
        assert measured.settings[0].recorded
        # Loosely: this machine does other things too.
        assert 0.3 < row.step_ns / measured.recorded.step_ns < 3

    run = str(tmp_path / SETTINGS[0])
    few = [
        "--forward-prefetch",
        "0,2",
        "--backward-prefetch",
        "0",
        "--reshard-after-forward",
        "true",
    ]
    assert main(["whatif", run, *few, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    assert [one["forward_prefetch"] for one in told["fsdp2"]["settings"]] == [0, 2]
    assert all(check["ok"] for check in told["fsdp2"]["closure"])
    assert main(["whatif", run, *few, "--rank", "1", "--width", "60"]) == 0
    text = capsys.readouterr().out
    assert "what other prefetch depths would do: rank 1" in text
    assert "a bound, not a forecast" in text
    assert max(map(len, text.splitlines())) <= 60
    for arguments, says in (
        (["--bucket-cap-mb", "5"], "--bucket-cap-mb is a setting of DDP"),
        (["--forward-prefetch", "5"], "no module of this run has more than 4 to gather ahead"),
        (["--backward-prefetch", "-1"], "'-1' is not a number of modules"),
        (["--forward-prefetch", "1.5"], "'1.5' is not a number of modules"),
        (["--reshard-after-forward", "perhaps"], "'perhaps' is not true or false"),
    ):
        flags = [f"{arguments[0]}={arguments[1]}"]
        assert main(["whatif", run, *flags]) == 2
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1


def _is(row, setting: Setting) -> bool:
    return (row.forward_prefetch, row.backward_prefetch, row.reshard_after_forward) == setting


def _without_frees(shape: tuple) -> list:
    """The order but for when parameters are given back: what was not given back has no moment that was recorded."""
    return [one for one in shape if one[0] != 4]
