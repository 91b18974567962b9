"""Small trainings of every kind that DDP allows, for ranks that run each of them with and without a watch.

In: a `Run`, which says whether there is a watch. Out: what the training left in the `Run`: models, losses, and, after
each step, how many collectives the process group itself has counted, which is a truth that owes nothing to our hooks.

A case is a function of a `Run`. It builds everything anew from the seed, so two runs of it are equal to the last bit
unless something interfered. Steps end with `Run.step_done()`, directly behind the optimizer step.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

STEPS = 6
WORLDS = (2, 3, 4)
USUAL = (2, 3)
"""A power of two, and none: what division by the number of ranks rounds. Four ranks run what depends on more."""
WIDTH = 48
SMALL_BUCKETS_MB = 0.004
"""Less than half a layer of `Net`: every weight has a bucket of its own."""


class Handle(Protocol):
    """What `Run.watch` gives: the watch, or nothing."""

    def step(self) -> None: ...

    def close(self) -> None: ...


class NoWatch:
    """The handle of a training that nobody watches."""

    def step(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Net(nn.Module):
    """Four linear layers; optionally one that no output needs, batch norm buffers, checkpointed layers, one used again."""

    def __init__(
        self,
        *,
        width: int = WIDTH,
        unused: bool = False,
        buffers: bool = False,
        checkpointed: str = "",
        again: bool = False,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.norm = nn.BatchNorm1d(width) if buffers else nn.Identity()
        if unused:
            self.unused = nn.Linear(width, width)
        self.checkpointed = checkpointed
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        for layer in [*self.layers, *self.layers[:1]] if self.again else self.layers:
            if self.checkpointed:
                reentrant = self.checkpointed == "reentrant"
                x = checkpoint(lambda h, f=layer: f(h).relu(), x, use_reentrant=reentrant)
            else:
                x = layer(x).relu()
        return self.norm(x)


class ThreeOutputs(Net):
    """A model whose output is a dictionary with a tuple in it; one tensor of it gets no gradient."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        h = super().forward(x)
        return {"pair": (h, 2 * h), "idle": h.sum()}


@dataclass
class Run:
    """One training. `attach` is given the models to watch and returns the handle."""

    attach: Callable[..., Handle]
    losses: list[float] = field(default_factory=list)
    models: list[DistributedDataParallel] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    counted: list[int] = field(
        default_factory=list
    )  # collectives so far, at watch() and at each step's end
    handle: Handle = field(default_factory=NoWatch)
    explicit_steps: bool = False
    width: int = WIDTH
    closed: bool = False

    def __post_init__(self) -> None:
        self.rank = dist.get_rank()
        self._random = torch.Generator().manual_seed(1000 + self.rank)

    def wrap(self, net: nn.Module, **settings: Any) -> DistributedDataParallel:
        """Wrap a model in DDP; it is a part of the result."""
        model = DistributedDataParallel(net, **settings)
        self.models.append(model)
        return model

    def watch(self, *models: nn.Module) -> None:
        """Here `overlapwatch.watch()` is called, if it is."""
        self.handle = self.attach(models[0] if len(models) == 1 else list(models))
        self.counted = [collectives_counted(self.models[0])]

    def close(self) -> None:
        """The watch ends here, if there is one, and training goes on."""
        self.handle.close()
        self.closed = True

    def batch(self) -> Tensor:
        """Return the next input of this rank."""
        return torch.randn(4, self.width, generator=self._random)

    def sgd(self, *models: nn.Module) -> torch.optim.Optimizer:
        """Return SGD with momentum over the parameters of these models."""
        parameters = [p for model in models for p in model.parameters()]
        return self.keep(torch.optim.SGD(parameters, lr=0.05, momentum=0.9))

    def keep(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Make the optimizer's state a part of the result."""
        self.optimizers.append(optimizer)
        return optimizer

    def backward(self, model: nn.Module) -> None:
        """Do one forward and one backward pass."""
        loss = model(self.batch()).square().mean()
        loss.backward()
        self.losses.append(loss.item())

    def step_done(self) -> None:
        """A step has ended: the optimizer has stepped."""
        if self.explicit_steps:
            self.handle.step()
        if not self.closed:
            self.counted.append(collectives_counted(self.models[0]))

    def fit(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        set_to_none: bool = True,
        steps: int = STEPS,
    ) -> None:
        """Train the ordinary way."""
        optimizer = optimizer or self.sgd(model)
        for _ in range(steps):
            self.backward(model)
            optimizer.step()
            self.step_done()
            optimizer.zero_grad(set_to_none=set_to_none)


def collectives_counted(model: DistributedDataParallel) -> int:
    """Return how many collectives the backend of this model's group has been asked for since it was made."""
    backend = model.process_group._get_backend(torch.device("cpu"))
    return int(backend._get_sequence_number_for_group())


@dataclass(frozen=True, slots=True)
class Case:
    """One training and what a watch must see of it.

    Args:
        train: the training.
        buckets: per step, how many buckets must be seen by name: a number, n = as many as DDP says it has in the end,
            . = not said. Further steps are like the last. (Where DDP has just rebuilt its buckets it tells the new
            layout one forward later, so one step has none.)
        flags: per step, in letters: u = unbucketed, r = rebuilt, - = neither, . = not said.
        accumulating: whether every step must be flagged so.
        fused: whether the optimizer runs where no optimizer span can be seen.
        uneven: whether ranks have different numbers of steps, so that the early ones join the others' collectives.
        payload: what a bucket's collective carries: "full" gradients, "half", or "other" (a hook's own business).
        hook_mode: what mode="hook" does: "watches", "refuses" with a sentence, "refuses or watches" (by the number of
            ranks), "gives way" (leaves with one warning), or "not run".
        worlds: numbers of ranks to run it on. Compiling takes seconds and is the same on every rank.
    """

    train: Callable[[Run], None]
    buckets: str = "10n"
    flags: str = "ur-"
    accumulating: bool = False
    fused: bool = False
    uneven: bool = False
    payload: str = "full"
    hook_mode: str = "watches"
    worlds: tuple[int, ...] = USUAL


CASES: dict[str, Case] = {}


def case(**expected: Any) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Make a function a case, under its own name."""

    def add(train: Callable[[Run], None]) -> Callable[[Run], None]:
        CASES[train.__name__] = Case(train, **expected)
        return train

    return add


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A process group with this process only in it: enough for everything that needs no second rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


# -- how buckets are laid out --------------------------------------------------------------------


@case(worlds=WORLDS)
def defaults(run: Run) -> None:
    model = run.wrap(Net())
    run.watch(model)
    run.fit(model, run.keep(torch.optim.AdamW(model.parameters(), lr=1e-3)))


@case(worlds=WORLDS)
def small_buckets(run: Run) -> None:
    model = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    run.watch(model)
    run.fit(model)


@case(hook_mode="refuses or watches", worlds=WORLDS)
def bucket_view(run: Run) -> None:
    model = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB, gradient_as_bucket_view=True)
    run.watch(model)
    run.fit(model)


@case(hook_mode="refuses or watches", worlds=WORLDS)
def bucket_view_gradients_kept(run: Run) -> None:
    model = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB, gradient_as_bucket_view=True)
    run.watch(model)
    run.fit(model, set_to_none=False)


@case(buckets="110n", flags="uur-", worlds=WORLDS)
def static_graph(run: Run) -> None:
    model = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB, static_graph=True)
    run.watch(model)
    run.fit(model)


@case(buckets="n", flags="-")
def find_unused(run: Run) -> None:
    model = run.wrap(Net(unused=True), bucket_cap_mb=SMALL_BUCKETS_MB, find_unused_parameters=True)
    run.watch(model)
    run.fit(model)


if "batched_grad_copy" in inspect.signature(DistributedDataParallel.__init__).parameters:

    @case()
    def batched_grad_copy(run: Run) -> None:
        model = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB, batched_grad_copy=True)
        run.watch(model)
        run.fit(model)


@case()
def buffers(run: Run) -> None:
    model = run.wrap(Net(buffers=True), bucket_cap_mb=SMALL_BUCKETS_MB)
    run.watch(model)
    run.fit(model)


# -- how steps are made --------------------------------------------------------------------------


def _accumulate(run: Run, **settings: Any) -> None:
    model = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB, **settings)
    run.watch(model)
    optimizer = run.sgd(model)
    for _ in range(STEPS):
        with model.no_sync():
            run.backward(model)
            run.backward(model)
        run.backward(model)
        optimizer.step()
        run.step_done()
        optimizer.zero_grad()


@case(buckets="1n", accumulating=True)
def accumulation(run: Run) -> None:
    _accumulate(run)


@case(buckets="1n", accumulating=True, hook_mode="refuses or watches", worlds=WORLDS)
def accumulation_bucket_view(run: Run) -> None:
    _accumulate(run, gradient_as_bucket_view=True)


@case()
def evaluation_between_steps(run: Run) -> None:
    model = run.wrap(Net(buffers=True), bucket_cap_mb=SMALL_BUCKETS_MB)
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
        run.step_done()  # what happens before the next training forward is counted to the step before


@case()
def metrics_reduced(run: Run) -> None:
    """The loop has collectives of its own, one as large as a bucket."""
    model = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    run.watch(model)
    optimizer = run.sgd(model)
    for _ in range(STEPS):
        run.backward(model)
        values = torch.full((WIDTH, WIDTH), run.losses[-1])
        dist.all_reduce(values)
        run.losses.append(values[0, 0].item())
        gathered = [torch.empty(1) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, values[0, :1])
        optimizer.step()
        run.step_done()
        optimizer.zero_grad()


@case()
def closure(run: Run) -> None:
    """The optimizer calls forward and backward."""
    model = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    run.watch(model)
    optimizer = run.sgd(model)

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        loss = model(run.batch()).square().mean()
        loss.backward()
        run.losses.append(loss.item())
        return loss

    for _ in range(STEPS):
        optimizer.step(evaluate)
        run.step_done()


@case()
def autocast(run: Run) -> None:
    model = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    run.watch(model)
    optimizer = run.sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for _ in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(run.batch()).float().square().mean()
        scaler.scale(loss).backward()
        run.losses.append(loss.item())
        scaler.step(optimizer)
        scaler.update()
        run.step_done()
        optimizer.zero_grad()


@case(buckets="1n")
def several_outputs(run: Run) -> None:
    """Two forward passes before one backward pass, and an output that is no tensor."""
    model = run.wrap(ThreeOutputs(), bucket_cap_mb=SMALL_BUCKETS_MB)
    run.watch(model)
    optimizer = run.sgd(model)
    for _ in range(STEPS):
        first, second = model(run.batch()), model(run.batch())
        loss = (first["pair"][0] * second["pair"][1]).mean() + first["pair"][1].square().mean()
        loss.backward()
        run.losses.append(loss.item())
        optimizer.step()
        run.step_done()
        optimizer.zero_grad()


@case(worlds=WORLDS)
def zero_redundancy(run: Run) -> None:
    model = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    run.watch(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
    run.fit(model, optimizer)


def _join(run: Run, *, initial: bool) -> None:
    model = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    run.watch(model)
    with model.join(divide_by_initial_world_size=initial):
        run.fit(model, steps=STEPS + 2 * run.rank)


@case(uneven=True)
def join(run: Run) -> None:
    _join(run, initial=True)


@case(uneven=True, hook_mode="gives way")
def join_dividing_by_those_left(run: Run) -> None:
    _join(run, initial=False)


# -- hooks ---------------------------------------------------------------------------------------


def _fp16_wrapper() -> tuple[Any, Callable[..., Any]]:
    return None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)


def _noop() -> tuple[Any, Callable[..., Any]]:
    from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

    return None, noop_hook


def _power_sgd() -> tuple[Any, Callable[..., Any]]:
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, matrix_approximation_rank=2)
    return state, powerSGD_hook.powerSGD_hook


def _own() -> tuple[Any, Callable[..., Any]]:
    """A hook with state, and arithmetic of its own in the future's callback."""

    def scaled_hook(
        state: list[int], bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        state.append(bucket.index())
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / dist.get_world_size())

    return [], scaled_hook


HOOKS: dict[str, tuple[Callable[[], tuple[Any, Callable[..., Any]]], str]] = {
    # name: (makes state and hook, payload)
    "allreduce": (lambda: (None, default_hooks.allreduce_hook), "full"),
    "fp16": (lambda: (None, default_hooks.fp16_compress_hook), "half"),
    "fp16_wrapper": (_fp16_wrapper, "half"),
    "own": (_own, "full"),
    "power_sgd": (_power_sgd, "other"),
    "noop": (_noop, "other"),
}


def _add_hook_cases() -> None:
    for name, (make, payload) in HOOKS.items():
        # PowerSGD deadlocks on gloo with two buckets in flight (pytorch#48478): it gets one.
        size = {} if name == "power_sgd" else {"bucket_cap_mb": SMALL_BUCKETS_MB}

        def before(run: Run, make: Any = make, size: Any = size) -> None:
            model = run.wrap(Net(), **size)
            model.register_comm_hook(*make())
            run.watch(model)
            run.fit(model)

        def after(run: Run, make: Any = make, size: Any = size) -> None:
            model = run.wrap(Net(), **size)
            run.watch(model)
            model.register_comm_hook(*make())
            run.fit(model)

        CASES[f"hook_{name}_before"] = Case(before, payload=payload)
        CASES[f"hook_{name}_after"] = Case(after, payload=payload)


_add_hook_cases()


@case(payload="half", hook_mode="refuses")
def builtin_hook_before(run: Run) -> None:
    model = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    run.watch(model)
    run.fit(model)


@case(payload="half", hook_mode="gives way")
def builtin_hook_after(run: Run) -> None:
    model = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    run.watch(model)
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    run.fit(model)


@case(fused=True)
def fused_optimizer(run: Run) -> None:
    """The optimizer runs inside the hook, so no optimizer step can be seen: the loop says where steps end."""
    model = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    run.explicit_steps = True
    run.watch(model)
    model._register_fused_optim(torch.optim.SGD, lr=0.05, momentum=0.9)
    for _ in range(STEPS):
        run.backward(model)
        run.step_done()
        model.zero_grad()


# -- several models ------------------------------------------------------------------------------


@case(buckets="20n")
def two_models(run: Run) -> None:
    """Two models of one size, reduced in one backward pass."""
    first, second = (run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB) for _ in range(2))
    run.watch(first, second)
    optimizer = run.sgd(first, second)
    for _ in range(STEPS):
        loss = (first(run.batch()) * second(run.batch())).square().mean()
        loss.backward()
        run.losses.append(loss.item())
        optimizer.step()
        run.step_done()
        optimizer.zero_grad()


@case(buckets=".", flags=".")
def adversaries(run: Run) -> None:
    """Two models, two optimizers that take turns; the generator's backward reduces both models."""
    generator = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    judge = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    run.watch(generator, judge)
    generating, judging = run.sgd(generator), run.sgd(judge)
    for _ in range(STEPS):
        with torch.no_grad():
            false = generator(run.batch())
        (judge(run.batch()).mean() - judge(false).mean()).backward()
        judging.step()
        run.step_done()
        judging.zero_grad()
        loss = judge(generator(run.batch())).square().mean()
        loss.backward()
        run.losses.append(loss.item())
        generating.step()
        run.step_done()
        generating.zero_grad()
        judging.zero_grad()


# -- recomputed and compiled ---------------------------------------------------------------------


@case()
def checkpointed(run: Run) -> None:
    model = run.wrap(Net(checkpointed="non-reentrant"), bucket_cap_mb=SMALL_BUCKETS_MB)
    run.watch(model)
    run.fit(model)


@case()
def checkpointed_reentrant(run: Run) -> None:
    model = run.wrap(Net(checkpointed="reentrant"), bucket_cap_mb=SMALL_BUCKETS_MB)
    run.watch(model)
    with _inputs_need_gradients(run):
        run.fit(model)


@case(buckets="110n", flags="uur-")
def checkpointed_static_graph(run: Run) -> None:
    model = run.wrap(
        Net(checkpointed="reentrant"), bucket_cap_mb=SMALL_BUCKETS_MB, static_graph=True
    )
    run.watch(model)
    with _inputs_need_gradients(run):
        run.fit(model)


@contextlib.contextmanager
def _inputs_need_gradients(run: Run) -> Iterator[None]:
    """Reentrant checkpoints only record a graph for inputs that need gradients."""
    plain = run.batch
    run.batch = lambda: plain().requires_grad_()  # type: ignore[method-assign]
    yield


@case()
def compiled_outside(run: Run) -> None:
    torch._dynamo.reset()
    run.width = (
        384  # 0.6 MB a layer: DDP and the compiler split the model in four, at the same places
    )
    model = run.wrap(Net(width=run.width), bucket_cap_mb=1)
    compiled = torch.compile(model, backend="eager")
    run.watch(compiled)
    run.fit(compiled)


@case(hook_mode="not run", worlds=(2,))
def compiled_after_watch(run: Run) -> None:
    torch._dynamo.reset()
    model = run.wrap(Net(buffers=True))
    run.watch(model)
    run.fit(torch.compile(model, backend="eager"))


@case(hook_mode="not run")
def compiled_inside(run: Run) -> None:
    torch._dynamo.reset()
    model = run.wrap(torch.compile(Net(), backend="aot_eager"))
    run.watch(model)
    run.fit(model)


@case(hook_mode="not run", worlds=(2,))
def compiled_whole_step(run: Run) -> None:
    torch._dynamo.reset()
    model = run.wrap(Net(buffers=True))
    run.watch(model)
    optimizer = run.sgd(model)

    @torch.compile(backend="eager")
    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(STEPS):
        run.losses.append(step(run.batch()).item())
        run.step_done()
        optimizer.zero_grad()


# -- closed while training goes on ---------------------------------------------------------------


def _closed_midway(run: Run, model: DistributedDataParallel, *, set_to_none: bool = True) -> None:
    run.watch(model)
    optimizer = run.sgd(model)
    run.fit(model, optimizer, set_to_none=set_to_none)
    run.close()
    run.fit(model, optimizer, set_to_none=set_to_none)


@case()
def closed_midway(run: Run) -> None:
    _closed_midway(run, run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB))


@case(payload="half")
def closed_midway_with_hook(run: Run) -> None:
    model = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    _closed_midway(run, model)


@case(hook_mode="refuses or watches")
def closed_midway_bucket_view(run: Run) -> None:
    model = run.wrap(Net(), bucket_cap_mb=SMALL_BUCKETS_MB, gradient_as_bucket_view=True)
    _closed_midway(run, model, set_to_none=False)


@case(buckets="110n", flags="uur-")
def closed_midway_static_graph(run: Run) -> None:
    """A layer is used twice and recomputed: DDP can only reduce that with a static graph."""
    net = Net(checkpointed="reentrant", again=True)
    with _inputs_need_gradients(run):
        _closed_midway(run, run.wrap(net, bucket_cap_mb=SMALL_BUCKETS_MB, static_graph=True))
