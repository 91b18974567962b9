"""Small trainings of every kind that FSDP2 allows, for ranks that run each of them with and without a watch.

In: a `Run`, which says whether there is a watch. Out: what the training left in the `Run`: losses, parameters, and, after
each step, how many collectives all process groups together have counted, a truth that owes nothing to our hooks. A case
builds everything anew from the seed, so two runs of it are equal to the last bit unless something interfered.
"""

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    DefaultAllGather,
    DefaultReduceScatter,
)
from torch.nn.parallel import DistributedDataParallel

from tests.support.training import Handle, NoWatch

STEPS = 3
WIDTH = 12


class Block(nn.Module):
    """Two linear layers with a residual; `reentrant` checkpoints them."""

    def __init__(self, *, reentrant: bool | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.reentrant = reentrant

    def inner(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x).relu())

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.inner(x)
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


class Net(nn.Module):
    """An embedding, three blocks, a norm and a head."""

    def __init__(self, *, tied: bool = False, reentrant: bool | None = None) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(reentrant=reentrant) for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)
        if tied:
            self.head.weight = self.embed.weight

    def body(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@dataclass
class Run:
    """One training. `attach` is given the models to watch and returns the handle."""

    attach: Callable[..., Handle]
    losses: list[float] = field(default_factory=list)
    models: list[nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)
    handle: Handle = field(default_factory=NoWatch)
    closed: bool = False

    def __post_init__(self) -> None:
        self._random = torch.Generator().manual_seed(1000 + dist.get_rank())

    def watch(self, *models: nn.Module) -> None:
        """Here `overlapwatch.watch()` is called, if it is."""
        self.handle = self.attach(models[0] if len(models) == 1 else list(models))
        self.counted = [collectives_counted()]

    def close(self) -> None:
        """The watch ends here, if there is one, and training goes on."""
        self.handle.close()
        self.closed = True

    def batch(self) -> Tensor:
        """Return the next input of this rank."""
        return torch.randn(4, WIDTH, generator=self._random)

    def sgd(self, *models: nn.Module) -> torch.optim.Optimizer:
        """Return SGD with momentum over what is trained of these models; all of it is a part of the result."""
        self.models += models
        parameters = [p for model in models for p in model.parameters() if p.requires_grad]
        self.optimizers.append(torch.optim.SGD(parameters, lr=0.05, momentum=0.9))
        return self.optimizers[-1]

    def backward(self, model: Callable[[Tensor], Tensor]) -> None:
        """Do one forward and one backward pass."""
        loss = model(self.batch()).float().square().mean()
        loss.backward()
        self.losses.append(loss.item())

    def step_done(self) -> None:
        """A step has ended: the optimizer has stepped."""
        if not self.closed:
            self.counted.append(collectives_counted())

    def fit(
        self, model: Any, optimizer: torch.optim.Optimizer | None = None, steps: int = STEPS
    ) -> None:
        """Train the ordinary way."""
        optimizer = optimizer or self.sgd(model)
        for _ in range(steps):
            self.backward(model)
            optimizer.step()
            self.step_done()
            optimizer.zero_grad()


def collectives_counted() -> int:
    """Return how many collectives the backends of all groups have been asked for since they were made."""
    counted = 0
    for group in list(dist.distributed_c10d._world.pg_map):
        if isinstance(group, dist.ProcessGroup):
            counted += group._get_backend(torch.device("cpu"))._get_sequence_number_for_group()
    return counted


@dataclass(frozen=True, slots=True)
class Case:
    """One training and what a watch must see of it.

    Args:
        train: the training.
        worlds: numbers of ranks to run it on.
        trace: what the last step must look like, in words (see `words_of` in the job); None: not said.
        unowned: whether collectives of the training loop's own, which nobody owns, are in the steps.
        flags: per step, in letters: u = unbucketed, r = rebuilt (DDP's business), - = neither.
        accumulating: whether every step must be flagged so.
        compiled: whether the compiler may give warnings of its own.
        says: a part of the one sentence that the watch must log; "" for none.
    """

    train: Callable[[Run], None]
    worlds: tuple[int, ...] = (2,)
    trace: str | None = None
    unowned: bool = False
    flags: str = "-"
    accumulating: bool = False
    compiled: bool = False
    says: str = ""


CASES: dict[str, Case] = {}


def case(**expected: Any) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Make a function a case, under its own name."""

    def add(train: Callable[[Run], None]) -> Callable[[Run], None]:
        CASES[train.__name__] = Case(train, **expected)
        return train

    return add


def shard(net: Net, **settings: Any) -> Any:
    """Wrap each block, then the model."""
    for block in net.blocks:
        fully_shard(block, **settings)
    return fully_shard(net, **settings)


_meshes: dict[tuple[int, ...], DeviceMesh] = {}


def mesh(*shape: int) -> DeviceMesh:
    """Return the mesh of this shape: made once, since its process groups stay."""
    if shape not in _meshes:
        names = ("replicate", "shard")[-len(shape) :]
        _meshes[shape] = init_device_mesh("cpu", shape, mesh_dim_names=names)
    return _meshes[shape]


# -- how the model is wrapped --------------------------------------------------------------------


@case(
    worlds=(2, 3),
    trace="""
    forward   AllGather Net; use Net
              AllGather blocks.0; use blocks.0; AllGather blocks.1; use blocks.1; AllGather blocks.2; use blocks.2
    backward  use Net; AllGather blocks.2 by Net; use blocks.2; AllGather blocks.1 by blocks.2; ReduceScatter blocks.2
              use blocks.1; AllGather blocks.0 by blocks.1; ReduceScatter blocks.1
              use blocks.0; ReduceScatter blocks.0; wait Net; ReduceScatter Net
    """,
)
def defaults(run: Run) -> None:
    model = shard(Net())
    run.watch(model)
    run.fit(model)


@case(
    trace="""
    forward   AllGather embed; use embed; AllGather blocks.0; use blocks.0; AllGather blocks.1; use blocks.1
              AllGather blocks.2; use blocks.2; AllGather norm; use norm; AllGather head; use head
    backward  AllGather head; use head; ReduceScatter head; AllGather norm; use norm; ReduceScatter norm
              AllGather blocks.2; use blocks.2; ReduceScatter blocks.2; AllGather blocks.1; use blocks.1
              ReduceScatter blocks.1; AllGather blocks.0; use blocks.0; ReduceScatter blocks.0
              AllGather embed; use embed; wait Net; ReduceScatter embed
    """
)
def root_not_wrapped(run: Run) -> None:
    """Each module is a root of its own for FSDP, so nothing is prefetched."""
    model = Net()
    for module in (model.embed, *model.blocks, model.norm, model.head):
        fully_shard(module, reshard_after_forward=True).set_reshard_after_forward(True)
    run.watch(model)
    run.fit(model)


@case(
    says="4 of 18 trainable parameters are in no module that fully_shard() has wrapped (embed.weight, embed.bias, "
)
def half_wrapped(run: Run) -> None:
    model = Net()
    for module in (*model.blocks, model.norm):
        fully_shard(module)
    run.watch(model)
    run.fit(model)


@case(
    trace="""
    forward   AllGather embed; use embed; AllGather blocks.0; use blocks.0
              AllGather blocks.1, blocks.2; use blocks.1, blocks.2; AllGather norm, head; use norm, head
    backward  AllGather norm, head; use norm, head; AllGather blocks.1, blocks.2 by norm, head; ReduceScatter norm, head
              use blocks.1, blocks.2; AllGather blocks.0 by blocks.1, blocks.2; ReduceScatter blocks.1, blocks.2
              use blocks.0; AllGather embed by blocks.0; ReduceScatter blocks.0; use embed
              wait Net; ReduceScatter embed
    """
)
def modules_together(run: Run) -> None:
    model = Net()
    fully_shard([model.norm, model.head])
    fully_shard(model.blocks[0])
    fully_shard([model.blocks[1], model.blocks[2]])
    fully_shard(model.embed)
    fully_shard(model)
    run.watch(model)
    run.fit(model)


@case()
def chunked_loss(run: Run) -> None:
    """The head is run by itself, chunk by chunk, after the model that it was wrapped with a part of."""
    model = Net()
    for block in model.blocks:
        fully_shard(block)
    fully_shard([model.norm, model.head])
    fully_shard(model)
    model.forward = model.body  # type: ignore[method-assign]
    run.watch(model)
    optimizer = run.sgd(model)
    for _ in range(STEPS):
        hidden = model(run.batch())
        loss = sum(model.head(part).square().mean() for part in hidden.chunk(2))
        assert isinstance(loss, Tensor)
        loss.backward()
        run.losses.append(loss.item())
        optimizer.step()
        run.step_done()
        optimizer.zero_grad()


@case()
def cpu_offload(run: Run) -> None:
    model = shard(Net(), offload_policy=CPUOffloadPolicy(pin_memory=False))
    run.watch(model)
    run.fit(model)


@case()
def mixed_precision(run: Run) -> None:
    """Each module casts its inputs and outputs, so what FSDP hooks is not what the module returns."""
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32)
    model = Net()
    for module in (model.embed, *model.blocks, model.norm, model.head):
        fully_shard(module, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    run.watch(model)
    run.fit(model)


@case()
def half_precision_reduced_in_it(run: Run) -> None:
    model = shard(Net(), mp_policy=MixedPrecisionPolicy(torch.float16, torch.float16))
    run.watch(model)
    run.fit(model)


@case()
def frozen(run: Run) -> None:
    net = Net()
    for parameter in (*net.embed.parameters(), *net.blocks[0].parameters()):
        parameter.requires_grad_(False)
    model = shard(net)
    run.watch(model)
    run.fit(model)


@case()
def shared_parameters(run: Run) -> None:
    model = shard(Net(tied=True))
    run.watch(model)
    run.fit(model)


@case()
def uneven_shards_on_another_dimension(run: Run) -> None:
    from torch.distributed.tensor import Shard

    model = shard(Net(), shard_placement_fn=lambda p: Shard(1) if p.ndim > 1 else None)
    run.watch(model)
    run.fit(model)


# -- checkpointing and compiling -----------------------------------------------------------------


@case()
def checkpoint_inside(run: Run) -> None:
    model = shard(Net(reentrant=False))
    run.watch(model)
    run.fit(model)


@case()
def checkpoint_reentrant(run: Run) -> None:
    model = shard(Net(reentrant=True))
    run.watch(model)
    run.fit(model)


@case()
def checkpoint_wrapper_within(run: Run) -> None:
    net = Net()
    for place, block in enumerate(net.blocks):
        net.blocks[place] = checkpoint_wrapper(block, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
    model = shard(net)
    run.watch(model)
    run.fit(model)


@case()
def checkpoint_wrapper_around(run: Run) -> None:
    net = Net()
    for block in net.blocks:
        fully_shard(block)
    for place, block in enumerate(net.blocks):
        net.blocks[place] = checkpoint_wrapper(block, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
    model = fully_shard(net)
    run.watch(model)
    run.fit(model)


@case(compiled=True)
def compiled_blocks(run: Run) -> None:
    net = Net()
    for block in net.blocks:
        block.compile(backend="aot_eager")
    model = shard(net)
    run.watch(model)
    run.fit(model)


@case(compiled=True)
def compiled_whole(run: Run) -> None:
    torch._dynamo.reset()
    model = torch.compile(shard(Net()), backend="aot_eager")
    run.watch(model)
    run.fit(model)
    torch._dynamo.reset()


# -- how steps are made --------------------------------------------------------------------------


def _accumulate(run: Run, model: Any) -> None:
    optimizer = run.sgd(model)
    for _ in range(STEPS):
        model.set_requires_gradient_sync(False)
        run.backward(model)
        run.backward(model)
        model.set_requires_gradient_sync(True)
        run.backward(model)
        optimizer.step()
        run.step_done()
        optimizer.zero_grad()


@case(accumulating=True)
def accumulation(run: Run) -> None:
    model = shard(Net())
    run.watch(model)
    _accumulate(run, model)


@case(accumulating=True)
def accumulation_kept_unsharded(run: Run) -> None:
    model = shard(Net())
    model.set_reshard_after_backward(False)
    model.set_is_last_backward(True)
    run.watch(model)
    _accumulate(run, model)


@case()
def evaluation_between_steps(run: Run) -> None:
    model = shard(Net())
    run.watch(model)
    optimizer = run.sgd(model)
    for _ in range(STEPS):
        run.backward(model)
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            run.losses.append(model(run.batch()).sum().item())
        model.train()
        run.step_done()


@case(unowned=True)
def metrics_reduced(run: Run) -> None:
    model = shard(Net())
    run.watch(model)
    optimizer = run.sgd(model)
    for _ in range(STEPS):
        run.backward(model)
        value = torch.full((1,), run.losses[-1])
        dist.all_reduce(value)
        run.losses.append(value.item())
        gradients = [p.grad for p in model.parameters()]
        squares = torch.stack([g.to_local().square().sum() for g in gradients])  # type: ignore[union-attr, operator]
        dist.all_reduce(
            squares
        )  # in place of clip_grad_norm_, whose functional collectives nobody sees
        run.losses.append(squares.sum().sqrt().item())
        optimizer.step()
        run.step_done()
        optimizer.zero_grad()


@case()
def module_used_twice(run: Run) -> None:
    net = Net()
    net.blocks[2] = net.blocks[0]
    fully_shard(net.blocks[0])
    fully_shard(net.blocks[1])
    model = fully_shard(net)
    run.watch(model)
    run.fit(model)


@case()
def watched_late(run: Run) -> None:
    model = shard(Net())
    optimizer = run.sgd(model)
    run.fit(model, optimizer, steps=2)
    run.watch(model)
    run.fit(model, optimizer)


@case()
def closed_halfway(run: Run) -> None:
    model = shard(Net())
    run.watch(model)
    optimizer = run.sgd(model)
    run.fit(model, optimizer, steps=2)
    run.close()
    run.fit(model, optimizer, steps=2)


@case()
def forward_method(run: Run) -> None:
    model = Net()
    for block in model.blocks:
        register_fsdp_forward_method(fully_shard(block), "inner")
        block.forward = block.inner  # type: ignore[method-assign]
    fully_shard(model)
    model.train_loss = lambda x: Net.forward(model, x)  # type: ignore[assignment]
    register_fsdp_forward_method(model, "train_loss")
    run.watch(model)
    run.fit(model.train_loss, run.sgd(model))


@case()
def two_models(run: Run) -> None:
    first, second = shard(Net()), shard(Net())
    run.watch(first, second)
    optimizer = run.sgd(first, second)
    run.fit(lambda x: second(first(x)), optimizer)


@case(unowned=True, flags="ur-")
def beside_ddp(run: Run) -> None:
    first, second = shard(Net()), DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    run.watch(first, second)
    optimizer = run.sgd(first, second)
    run.fit(lambda x: second(first(x)), optimizer)


# -- prefetch and reshard ------------------------------------------------------------------------


@case(
    trace="""
    forward   AllGather Net; use Net; AllGather blocks.0; use blocks.0; AllGather blocks.1 by blocks.0
              AllGather blocks.2 by blocks.0; use blocks.1; use blocks.2
    backward  use Net; AllGather blocks.2 by Net; AllGather blocks.1 by Net; use blocks.2; AllGather blocks.0 by blocks.2
              ReduceScatter blocks.2; use blocks.1; ReduceScatter blocks.1
              use blocks.0; ReduceScatter blocks.0; wait Net; ReduceScatter Net
    """
)
def prefetch_lists(run: Run) -> None:
    model = shard(Net())
    blocks = list(model.blocks)
    blocks[0].set_modules_to_forward_prefetch(blocks[1:])
    model.set_modules_to_backward_prefetch([blocks[2], blocks[1]])
    blocks[2].set_modules_to_backward_prefetch([blocks[0]])
    blocks[1].set_modules_to_backward_prefetch([blocks[0]])
    run.watch(model)
    run.fit(model)


@case(
    trace="""
    forward   AllGather Net; use Net; AllGather blocks.0; use blocks.0; AllGather blocks.1; use blocks.1
              AllGather blocks.2; use blocks.2
    backward  use Net; use blocks.2; ReduceScatter blocks.2; use blocks.1; ReduceScatter blocks.1
              use blocks.0; ReduceScatter blocks.0; wait Net; ReduceScatter Net
    """
)
def kept_after_forward(run: Run) -> None:
    model = shard(Net(), reshard_after_forward=False)
    run.watch(model)
    run.fit(model)


@case(worlds=(4,))
def resharded_to_two(run: Run) -> None:
    model = shard(Net(), reshard_after_forward=2)
    run.watch(model)
    run.fit(model)


@case(worlds=(2, 3))
def asynchronous_unshard(run: Run) -> None:
    model = shard(Net())
    model._set_unshard_async_op(True)
    blocks = list(model.blocks)
    for block, following in itertools.pairwise(blocks):
        block.set_modules_to_forward_prefetch([following])
    run.watch(model)
    run.fit(model)


@case(
    trace="""
    forward   AllGather Net; use Net; use blocks.0; use blocks.1; AllGather blocks.2; use blocks.2
    backward  use Net; AllGather blocks.2 by Net; use blocks.2; AllGather blocks.1 by blocks.2; ReduceScatter blocks.2
              use blocks.1; AllGather blocks.0 by blocks.1; ReduceScatter blocks.1
              use blocks.0; ReduceScatter blocks.0; wait Net; ReduceScatter Net
    other     AllGather blocks.1 by unshard(); AllGather blocks.2 by unshard(); AllGather blocks.0 by unshard()
    """
)
def unsharded_by_hand(run: Run) -> None:
    model = shard(Net())
    run.watch(model)
    optimizer = run.sgd(model)
    for _ in range(STEPS):
        run.backward(model)
        optimizer.step()
        optimizer.zero_grad()
        model.blocks[1].unshard(async_op=True)  # for the next forward, which waits for it
        handle = model.blocks[2].unshard(async_op=True)
        model.blocks[0].unshard()
        handle.wait()
        model.blocks[2].reshard()
        run.step_done()


# -- communicators -------------------------------------------------------------------------------


class OwnGather(DefaultAllGather):
    """A communicator of the user's: counts, and gathers with other functions."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False
    ) -> Any:
        self.calls += 1
        parts = list(output_tensor.chunk(group.size()))
        return dist.all_gather(parts, input_tensor.clone(), group=group, async_op=async_op)


class OwnScatter(DefaultReduceScatter):
    """Reduces by an all-to-all and a sum of its own: two collectives' worth of arithmetic for one."""

    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False
    ) -> None:
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        torch.mean(received.view(group.size(), -1), 0, out=output_tensor)


@case()
def own_communicators(run: Run) -> None:
    model = shard(Net())
    gathers = [OwnGather() for _ in model.blocks]
    for block, gather in zip(model.blocks, gathers, strict=True):
        block.set_custom_all_gather(gather)
        block.set_custom_reduce_scatter(OwnScatter())
    run.watch(model)
    run.fit(model)
    run.losses += [float(gather.calls) for gather in gathers]


@case()
def communicators_set_later(run: Run) -> None:
    model = shard(Net())
    run.watch(model)
    for block in model.blocks:
        block.set_allocate_memory_from_process_group_for_comm(
            True
        )  # looks at the type of what is there
    model.blocks[0].set_custom_all_gather(OwnGather())
    run.fit(model)


def _all_reduce(gradient: Tensor) -> None:
    dist.all_reduce(gradient)


@case()
def all_reduce_hook(run: Run) -> None:
    model = shard(Net())
    for block in model.blocks:
        block.set_all_reduce_hook(_all_reduce)
    run.watch(model)
    run.fit(model)


if hasattr(FSDPModule, "set_separate_reduce_scatter_group"):

    @case()
    def separate_reduce_scatter_group(run: Run) -> None:
        model = shard(Net())
        model.set_separate_reduce_scatter_group(True)
        run.watch(model)
        run.fit(model)


# -- HSDP ----------------------------------------------------------------------------------------


@case(
    worlds=(4,),
    trace="""
    forward   AllGather Net; use Net; AllGather blocks.0; use blocks.0; AllGather blocks.1; use blocks.1
              AllGather blocks.2; use blocks.2
    backward  use Net; AllGather blocks.2 by Net; use blocks.2; AllGather blocks.1 by blocks.2
              ReduceScatter blocks.2; AllReduce blocks.2; use blocks.1; AllGather blocks.0 by blocks.1
              ReduceScatter blocks.1; AllReduce blocks.1; use blocks.0; ReduceScatter blocks.0; AllReduce blocks.0
              wait Net; ReduceScatter Net; AllReduce Net
    """,
)
def hsdp(run: Run) -> None:
    model = shard(Net(), mesh=mesh(2, 2))
    run.watch(model)
    run.fit(model)


@case(worlds=(4,), accumulating=True)
def hsdp_accumulating(run: Run) -> None:
    model = shard(Net(), mesh=mesh(2, 2))
    run.watch(model)
    optimizer = run.sgd(model)
    for _ in range(STEPS):
        for last in (False, True):
            model.set_requires_all_reduce(last)
            run.backward(model)
        optimizer.step()
        run.step_done()
        optimizer.zero_grad()


try:
    from torch.distributed._composable.replicate_with_fsdp import replicate
except ImportError:  # an older PyTorch, where DDP alone replicates
    pass
else:

    @case(
        trace="""
        forward   use Net; use blocks.0; use blocks.1; use blocks.2
        backward  use Net; use blocks.2; AllReduce blocks.2; use blocks.1; AllReduce blocks.1
                  use blocks.0; AllReduce blocks.0; wait Net; AllReduce Net
        """
    )
    def replicated(run: Run) -> None:
        """Not sharded at all: FSDP2's machinery reduces like DDP, module by module."""
        net = Net()
        world = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("replicate",))
        for block in net.blocks:
            replicate(block, mesh=world)
        model: Any = replicate(net, mesh=world)
        run.watch(model)
        run.fit(model)


try:
    from torch.distributed.fsdp._fully_shard._fsdp_common import (
        FSDPMeshInfo,
        ShardPlacementResult,
    )

    SEVERAL_GROUPS = True
except ImportError:  # before 2.12 a unit has one group
    SEVERAL_GROUPS = False

if SEVERAL_GROUPS:

    @case(worlds=(4,))
    def two_groups_in_a_module(run: Run) -> None:
        """As for experts: the second layer of each block is sharded over two ranks, the rest over four."""
        from torch.distributed.tensor import Shard

        inner = FSDPMeshInfo(mesh(2, 2)["shard"], shard_mesh_dim=0)
        outer = FSDPMeshInfo(mesh(4), shard_mesh_dim=0)
        net = Net()
        few = {id(p) for block in net.blocks for p in block.second.parameters()}

        def place(parameter: nn.Parameter) -> Any:
            info = inner if id(parameter) in few else outer
            return ShardPlacementResult(Shard(0), info)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = shard(net, mesh=mesh(4), shard_placement_fn=place)
        run.watch(model)
        run.fit(model)
