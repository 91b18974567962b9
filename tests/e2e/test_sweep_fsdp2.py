"""FSDP2's settings tried in a real running job: results keep their bits, and what the user had set comes back."""

import json

import pytest

from tests.support import jobs

pytestmark = pytest.mark.e2e

JOB = """
    import json, sys, time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    import overlapwatch

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def lists(model):
        return [
            [len(m._get_fsdp_state()._states_to_forward_prefetch), len(m._get_fsdp_state()._states_to_backward_prefetch),
             m._get_fsdp_state()._fsdp_param_groups[0].post_forward_mesh_info is not None]
            for m in model
        ]

    def train(steps):
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(5)])
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model[0].set_modules_to_forward_prefetch([model[1]])  # the user's own
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        data = torch.Generator().manual_seed(1 + dist.get_rank())
        sweep, seen, before = None, set(), lists(model)
        if steps is None:
            watch = overlapwatch.watch(model, log_dir=sys.argv[1], sinks=("none",))
        number = 0
        while number < (steps or 2000):
            if steps is None and number == 3:
                sweep = overlapwatch.sweep(
                    watch, forward_prefetch=[2], backward_prefetch=[3], reshard_after_forward=[False],
                    rounds=2, block=3, apply="original",
                )
            model(torch.randn(4, 32, generator=data)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            number += 1
            seen.add(json.dumps(lists(model)))
            if steps is None:
                time.sleep(0.005)
            if sweep is not None and sweep.done:
                break
        told = {}
        if steps is None:
            told = {"because": sweep.because, "back": lists(model) == before, "seen": sorted(seen), "steps": number,
                    "names": sweep.names}
            watch.close()
        return [p.full_tensor().detach().clone() for p in model.parameters()], told

    watched, told = train(None)
    plain, _ = train(told["steps"])
    told["same"] = all(torch.equal(a, b) for a, b in zip(watched, plain, strict=True))
    print(json.dumps(told), flush=True)
    dist.destroy_process_group()
"""


def test_each_setting_takes_effect_and_the_users_comes_back(tmp_path):
    result = jobs.run_ranks(JOB, 2, args=[str(tmp_path)], timeout_s=90).check()
    for rank in result.ranks:
        told = json.loads(rank.stdout.splitlines()[-1])
        assert told["because"] == ""
        assert told["same"]
        assert told["back"]
        assert told["names"] == [
            "as it was",
            "forward_prefetch 2 ahead",
            "backward_prefetch 3 ahead",
            "reshard_after_forward False",
        ]
        seen = [json.loads(one) for one in told["seen"]]
        assert [[2, 0, True], [2, 0, True], [2, 0, True], [1, 0, True], [0, 0, True]] in seen
        assert [[1, 0, True], [0, 1, True], [0, 2, True], [0, 3, True], [0, 3, True]] in seen
        assert [[1, 0, False], *[[0, 0, False]] * 4] in seen
