"""Keeps `torch.compile` away from our functions.

In: functions that torch calls while a compiled function runs. Out: the same functions, marked: the compiler neither
traces into them nor compiles their frames, nor what they call. Importing the compiler for that (seconds) would be felt
in jobs that do not compile, so the marks are those that `torch.compiler.disable` would leave.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch._C._dynamo.eval_frame as frames

F = TypeVar("F", bound=Callable[..., Any])


def not_compiled(function: F) -> F:
    """Mark a function; use it as a decorator. It costs nothing when the function is called."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined] # noqa: SLF001 - where a traced function calls it
    if hasattr(frames, "set_code_exec_strategy"):  # where C++ calls it inside a compiled function
        skip = frames._FrameAction.SKIP  # noqa: SLF001
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))  # noqa: SLF001
    return function
