"""Switches Megatron's overlap of gradients and of parameters off and on again, in one model chunk of a running job.

In: a chunk in Megatron's DistributedDataParallel, between two steps. Out: the same chunk, which from then on does what
one built with the other option does. Megatron reads both options at each use, so they are changed where they are kept;
what it prepared when it built the chunk (buckets, forward pre-hooks, the order of gathering) cannot be made up for
later, which is why neither can be switched on in a job that was started without it.

    gradients    off: the flag, and no `grad_sync_func` for the schedule, or the gradients would be reduced twice
                 on: both as they were
    parameters   off: at the end of the next backward the flag, and Megatron's own `disable_forward_pre_hook`; the
                      optimizer then gathers as it ends. The forward before that still gathers as it used to: nothing
                      has to be gathered on purpose, so a change never sends a collective of its own
                 on: the flag and `enable_forward_pre_hook`; what the optimizer has gathered is not gathered again

While the overlap of parameters is off, a training loop that takes the pre-hooks out for an evaluation or a checkpoint
and puts them back is answered in Megatron's place, as there are none.
"""

from collections.abc import Callable
from typing import Any

from overlapwatch.hooks.megatron.patches import Patches


class _Flag:
    """One option, in every configuration object that the chunk reads it from; the one of the optimizer is the chunk's.

    Chunks may share these objects, so what is in force is asked of the switch that owns the flag.
    """

    def __init__(self, ddp: Any, name: str) -> None:
        self._ddp, self._name = ddp, name

    def set(self, on: bool) -> None:  # noqa: FBT001 - it is what is set
        groups = [*self._ddp.bucket_groups, *self._ddp.expert_parallel_bucket_groups]
        for config in (self._ddp.ddp_config, *(group.ddp_config for group in groups)):
            setattr(config, self._name, on)


class _Held:
    """A function that the schedule finds in the model's configuration, taken out for a while."""

    def __init__(self, ddp: Any, name: str) -> None:
        self._config: Any = getattr(ddp, "config", None)
        self._name = name
        self._function: Any = None

    def take(self) -> None:
        """Take it out; a second chunk with the same configuration finds nothing there."""
        self._function = getattr(self._config, self._name, None)
        if self._function is not None:
            setattr(self._config, self._name, None)

    def put_back(self) -> None:
        """Put it back, unless somebody has put another one there."""
        if self._function is not None and getattr(self._config, self._name, None) is None:
            setattr(self._config, self._name, self._function)
        self._function = None


class GradientOverlap:
    """`overlap_grad_reduce` of one chunk."""

    def __init__(self, ddp: Any) -> None:
        self.on = bool(ddp.ddp_config.overlap_grad_reduce)
        # Megatron gives up the limit of a bucket where it is built without overlap.
        self.built_on = self.on or ddp.ddp_config.bucket_size is not None
        self._flag = _Flag(ddp, "overlap_grad_reduce")
        self._schedule = _Held(ddp, "grad_sync_func")

    def switch(self, on: bool) -> None:  # noqa: FBT001 - it is what is switched
        """Bring it into force with the next backward."""
        if on == self.on:
            return
        self._flag.set(on)
        if on:
            self._schedule.put_back()
        else:
            self._schedule.take()
        self.on = on


class ParameterOverlap:
    """`overlap_param_gather` of one chunk.

    Args:
        ddp: the wrapper.
        failed: called with what went wrong when the switch is thrown, in the middle of the training loop.
    """

    def __init__(self, ddp: Any, failed: Callable[[Exception], None]) -> None:
        self._ddp, self._failed = ddp, failed
        self.on = bool(ddp.ddp_config.overlap_param_gather)
        self.built_on = bool(getattr(ddp, "use_forward_hook", False))
        self._flag = _Flag(ddp, "overlap_param_gather")
        self._schedule = _Held(ddp, "param_sync_func")
        self._pending = Patches()  # off is wanted; the backward has not ended
        self._answers = Patches()  # it is off
        self._hooks_wanted = False

    def switch(self, on: bool) -> None:  # noqa: FBT001 - it is what is switched
        """Bring it into force: on with the next forward, off with the next optimizer step."""
        if on == self.on:
            return
        if not on:
            self._check_hooks()
            self._pending.add(self._ddp, "finish_grad_sync", self._wrap_finish)
        elif self._pending:
            self._pending.undo()
        else:
            self._on_again()
        self.on = on

    def _check_hooks(self) -> None:
        """Raise for hooks that Megatron could not take out: it looks for one in each module."""
        hooks = self._ddp.remove_forward_pre_hook_handles
        if hooks and set(hooks) != set(self._ddp.module.modules()):
            raise RuntimeError(
                "modules were added to or taken from the model since Megatron put its forward pre-hooks in"
            )

    def _wrap_finish(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def finish_grad_sync(*args: Any, **options: Any) -> Any:
            result = original(*args, **options)
            self._pending.undo()
            try:
                self._off()
            except Exception as error:  # noqa: BLE001 - the training loop is not to hear of it
                self._failed(error)
            return result

        return finish_grad_sync

    def _off(self) -> None:
        """All parameters have been used: from here on the optimizer gathers them."""
        ddp = self._ddp
        self._check_hooks()
        self._hooks_wanted = bool(ddp.remove_forward_pre_hook_handles)
        if self._hooks_wanted:
            _without_gathering(ddp, ddp.disable_forward_pre_hook)
        self._flag.set(False)
        self._schedule.take()
        self._answers.add(ddp, "disable_forward_pre_hook", lambda _: self._no_hooks)
        self._answers.add(ddp, "enable_forward_pre_hook", lambda _: self._hooks_later)

    def _on_again(self) -> None:
        self._answers.undo()
        self._flag.set(True)
        self._schedule.put_back()
        if self._hooks_wanted:
            self._ddp.enable_forward_pre_hook()

    def _no_hooks(self, param_sync: bool = True) -> None:  # noqa: FBT001, FBT002 - Megatron's signature
        """Stand in for `disable_forward_pre_hook`: there are none, and parameters are gathered already."""
        self._hooks_wanted = False
        if param_sync:
            self._ddp.start_param_sync(force_sync=True)

    def _hooks_later(self) -> None:
        """Stand in for `enable_forward_pre_hook`: they are put in when the option is on again."""
        self._hooks_wanted = True


def _without_gathering(ddp: Any, disable: Callable[..., None]) -> None:
    """Take the hooks out and nothing else: the call would gather too, in 0.10 whatever it is told."""
    shadow = Patches()
    shadow.add(ddp, "start_param_sync", lambda _: lambda *_a, **_k: None)
    try:
        disable()
    finally:
        shadow.undo()
