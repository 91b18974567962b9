"""A real DDP run, asked what another cap would have done: its layouts must be those that DDP then makes."""

import json

import pytest

from overlapwatch.commands import main
from tests.support import jobs

pytestmark = pytest.mark.e2e

JOB = """
    import json, sys
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    import overlapwatch

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(192, 192) for i in range(12)])
    sizes = {}
    for cap in (0.2, 0.5, 100):
        model = DistributedDataParallel(net, bucket_cap_mb=cap)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        watch = overlapwatch.watch(
            model, log_dir=f"{sys.argv[1]}/{cap}", sinks=("none",), gradients_every=1, shadow_every=0
        )
        for _ in range(6):
            model(torch.ones(4, 192)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        watch.close()
        sizes[cap] = [int(s) for s in model._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")]
        del model, optimizer
    if dist.get_rank() == 0:
        print(json.dumps(sizes))
    dist.destroy_process_group()
"""


def test_the_layouts_forecast_are_those_that_ddp_makes(tmp_path, capsys):
    result = jobs.run_ranks(JOB, 2, args=[str(tmp_path)], timeout_s=90).check()
    sizes = json.loads(result.stdout.splitlines()[-1])
    assert main(["whatif", str(tmp_path / "0.5"), "--bucket-cap-mb", "0.2,0.5,100", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["ddp"]
    assert told["ranks"] == 2
    assert told["steps"] >= 3
    for cap, row in zip(("0.2", "0.5", "100"), told["caps"], strict=True):
        assert row["buckets"] == len(sizes[cap])
        assert row["largest_bytes"] == max(sizes[cap])
    assert told["recorded"]["buckets"] == len(sizes["0.5"])
    assert main(["whatif", str(tmp_path / "0.5"), "--rank", "1"]) == 0
    text = capsys.readouterr().out
    assert "what other bucket caps would do: rank 1" in text
    assert "a bound, not a forecast" in text
    assert main(["whatif", str(tmp_path / "0.5"), "--rank", "7"]) == 2
    assert "no rank 7" in capsys.readouterr().err
