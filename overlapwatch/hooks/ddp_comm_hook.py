"""The communication-hook mode, and the wrapper that gives a user's hook its bucket.

In: a watched DDP module. Out: in hook mode, one COLLECTIVE record a bucket, from the hook's call to the completion of
the future it returned; in passive mode only the knowledge of which bucket a user's hook is working on.

Without a user's hook, hook mode has to do what DDP does without one: sum, then divide by the number of ranks with the
very same operation (DDP multiplies by the reciprocal while it copies; it divides where the gradient already lies in the
bucket). Where that cannot be reproduced to the bit, hook mode is refused and passive mode is the answer.

DDP takes one hook, once. A module that has one already is given a new reducer (milliseconds; DDP lays its buckets out
again over the next two steps), with the same hooks wrapped; `restore` does the same without the wrapping.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from overlapwatch.errors import ConfigurationError
from overlapwatch.hooks.compiler import not_compiled
from overlapwatch.hooks.ddp import DdpModule
from overlapwatch.hooks.ddp_reducer import replace_reducer
from overlapwatch.hooks.recorder import Recorder
from overlapwatch.hooks.times import Finish
from overlapwatch.vocabulary import CollectiveKind, RecordFlag

Hook = Callable[[Any, Any], Any]
_ALL_REDUCING = {"allreduce_hook", "fp16_compress_hook", "bf16_compress_hook"}


def lend_bucket(module: DdpModule, recorder: Recorder, hook: Hook) -> Hook:
    """Wrap a user's hook so that the collectives it launches are known to be this bucket's. Never alters anything."""

    @not_compiled
    @functools.wraps(hook)
    def overlapwatch_hook(state: Any, bucket: Any) -> Any:
        if not (recorder.recording and isinstance(bucket, dist.GradBucket)):
            return hook(state, bucket)
        module.next_bucket, module.in_hook = bucket.index(), True
        try:
            return hook(state, bucket)
        finally:
            module.in_hook = False

    return overlapwatch_hook


class LaterHooks:
    """Passive mode: hooks that the user registers after `watch()` are lent their buckets. Nothing else is touched."""

    def __init__(self, module: DdpModule, recorder: Recorder) -> None:
        self._ddp = module.ddp
        register = self._ddp.register_comm_hook

        @functools.wraps(register)
        def register_comm_hook(state: object, hook: Hook) -> None:
            if not _wrappable(hook):
                register(state, hook)
                return
            register(state, lend_bucket(module, recorder, hook))
            self._ddp._comm_hooks[-1] = (hook, state)  # noqa: SLF001 - it looks as the user made it

        self._ddp.register_comm_hook = register_comm_hook

    def remove(self) -> None:
        """DDP's own method is back."""
        self._ddp.__dict__.pop("register_comm_hook", None)


def _wrappable(hook: Any) -> bool:
    # DDP looks at these; an object without them is DDP's to refuse, with its own words.
    return callable(hook) and hasattr(hook, "__name__") and hasattr(hook, "__qualname__")


class CommHookMode:
    """Hook mode for one module.

    Raises:
        ConfigurationError: this module's results could not be kept bit-identical, or it has a built-in C++ hook.
    """

    def __init__(self, module: DdpModule, recorder: Recorder, group_id: int) -> None:
        self._module = module
        self._ddp = module.ddp
        self._recorder = recorder
        self._group_id = group_id
        self._sequence = 0
        self._blind = self._removed = False
        module.future_recorded = True
        self._users: list[tuple[Hook, Any]] = list(self._ddp._comm_hooks)  # noqa: SLF001
        said = self._ddp._get_ddp_logging_data().get("comm_hook", "")  # noqa: SLF001
        if said and not self._users:
            raise ConfigurationError(
                f"this DDP module has the built-in communication hook {said}, which cannot be wrapped: use "
                "mode='passive'"
            )
        if self._users:
            self._replace_reducer()
            for hook, state in self._users:
                dist._register_comm_hook(self._ddp.reducer, state, self._watched(hook))  # noqa: SLF001
        else:
            self._default = self._default_path()
            dist._register_comm_hook(self._ddp.reducer, None, self._watched(self._default_or_later))  # noqa: SLF001
            self._install_register()
            self._install_join()

    # -- what DDP does without a hook --------------------------------------------------------------------------

    def _default_path(self) -> Hook:
        ddp, ranks = self._ddp, dist.get_world_size(self._ddp.process_group)
        exact_either_way = ranks & (ranks - 1) == 0
        divides = bool(getattr(ddp, "batched_grad_copy", False))
        if ddp.gradient_as_bucket_view and not exact_either_way and not divides:
            raise ConfigurationError(
                f"mode='hook' cannot keep results bit-identical with gradient_as_bucket_view on {ranks} ranks (not a "
                "power of two): use mode='passive'"
            )
        group = ddp.process_group

        def overlapwatch_allreduce_hook(_state: Any, bucket: Any) -> Any:
            buffer = bucket.buffer()
            if divides:
                buffer.div_(ranks)
            else:
                buffer.mul_(1.0 / ranks)
            future = dist.all_reduce(buffer, group=group, async_op=True).get_future()
            return future.then(lambda done: done.value()[0])

        return overlapwatch_allreduce_hook

    def _default_or_later(self, state: Any, bucket: Any) -> Any:
        if self._users:
            hook, own_state = self._users[0]
            return hook(own_state, bucket)
        return self._default(state, bucket)

    def _install_register(self) -> None:
        """A hook registered after `watch()`: DDP would refuse a second one, so ours calls it from now on."""
        ddp = self._ddp

        def register_comm_hook(state: object, hook: Hook) -> None:
            ddp._check_comm_hook(hook)  # noqa: SLF001
            if self._users:
                raise RuntimeError(
                    "register_comm_hook or register_builtin_comm_hook can only be called once."
                )
            ddp.logger._set_comm_hook_name(hook.__qualname__)  # noqa: SLF001
            ddp._comm_hooks.append((hook, state))  # noqa: SLF001
            self._users.append((hook, state))

        builtin = ddp._register_builtin_comm_hook  # noqa: SLF001

        def register_builtin_comm_hook(kind: Any) -> None:
            if not self._users:  # otherwise DDP refuses it, with its own words
                self._give_way("a built-in communication hook cannot be wrapped")
            builtin(kind)

        ddp.register_comm_hook = register_comm_hook
        ddp._register_builtin_comm_hook = register_builtin_comm_hook  # noqa: SLF001

    def _give_way(self, because: str) -> None:
        """Leave before results would change: training goes on as if nobody had watched."""
        self._recorder.guard.trip(
            "mode='hook'", ConfigurationError(f"{because}; use mode='passive'")
        )
        self.remove()

    def _install_join(self) -> None:
        """`Join(..., divide_by_initial_world_size=False)` divides by a number that only DDP's own path knows."""
        ddp, join_hook = self._ddp, self._ddp.join_hook

        def watched_join_hook(**kwargs: Any) -> Any:
            if not kwargs.get("divide_by_initial_world_size", True) and not self._users:
                self._give_way("Join(divide_by_initial_world_size=False) needs DDP's own path")
            return join_hook(**kwargs)

        ddp.join_hook = watched_join_hook

    # -- recording ---------------------------------------------------------------------------------------------

    def _watched(self, hook: Hook) -> Hook:
        recorder, module, times, guard = (
            self._recorder,
            self._module,
            self._recorder.times,
            self._recorder.guard,
        )
        name = getattr(hook, "__name__", "")
        known = name in _ALL_REDUCING or not self._users
        kind = CollectiveKind.ALL_REDUCE if known else CollectiveKind.UNKNOWN

        @not_compiled
        def overlapwatch_comm_hook(state: Any, bucket: Any) -> Any:
            if not (recorder.recording and isinstance(bucket, dist.GradBucket)):
                return hook(state, bucket)
            slot = -1
            try:
                module.next_bucket = bucket.index()
                buffer = bucket.buffer()
                self._sequence += 1
                flags = (RecordFlag.READY_ESTIMATED if times.on_host else 0) | (
                    RecordFlag.FINISH_UNOBSERVABLE if self._blind else 0
                )
                at = recorder.now()
                slot = recorder.launch(
                    kind,
                    module.bucket,
                    self._group_id,
                    self._sequence,
                    buffer.numel() * buffer.element_size(),
                    flags,
                    at,
                )
                module.take(slot, at)
            except Exception as error:  # noqa: BLE001 - whatever it is, it stays with us
                guard.trip("communication hook", error)
            future = hook(state, bucket)
            if slot >= 0 and not self._blind:
                try:
                    coming = times.mark_finish(slot, _HasFuture(future), synchronous=False)
                    self._blind = coming is Finish.NEVER
                    if coming is not Finish.COMING:
                        recorder.unobservable(slot)
                except Exception as error:  # noqa: BLE001
                    guard.trip("communication hook", error)
            return future

        overlapwatch_comm_hook.__name__ = name or "overlapwatch_comm_hook"
        overlapwatch_comm_hook.__qualname__ = getattr(
            hook, "__qualname__", overlapwatch_comm_hook.__name__
        )
        return overlapwatch_comm_hook

    # -- leaving -----------------------------------------------------------------------------------------------

    def _replace_reducer(self) -> None:
        """Give the DDP module a reducer without a hook; parameters, gradients and optimizer state stay as they are."""
        with _first_laid_out_as(self._module.rebuilt_buckets()):
            replace_reducer(self._ddp)
        self._module.reset_layout()

    def remove(self) -> None:
        """DDP is as it was: the user's hooks unwrapped, its own methods back. Call between steps."""
        if self._removed:
            return
        self._removed = True
        for name in ("register_comm_hook", "_register_builtin_comm_hook", "join_hook"):
            self._ddp.__dict__.pop(name, None)
        self._replace_reducer()
        for hook, state in self._users:
            dist._register_comm_hook(self._ddp.reducer, state, hook)  # noqa: SLF001


@contextlib.contextmanager
def _first_laid_out_as(buckets: list[list[int]]) -> Iterator[None]:
    """Have a new reducer begin with these buckets (parameter indices, in launch order); [] for its own choice.

    A gradient's place in its bucket decides in which order the ranks' values are added. With more than two ranks even
    one step in another layout would change the last bits.
    """
    assign: Any = dist._compute_bucket_assignment_by_size  # noqa: SLF001
    if buckets:  # DDP reverses what it gets
        answer = (buckets[::-1], [_NO_LIMIT] * len(buckets))
        dist._compute_bucket_assignment_by_size = lambda *_: answer  # noqa: SLF001
    try:
        yield
    finally:
        dist._compute_bucket_assignment_by_size = assign  # noqa: SLF001


_NO_LIMIT = (1 << 63) - 1


class _HasFuture:
    """Gives a bare future the one method that `Times.mark_finish` asks a Work for."""

    __slots__ = ("_future",)

    def __init__(self, future: Any) -> None:
        self._future = future

    def get_future(self) -> Any:
        return self._future
