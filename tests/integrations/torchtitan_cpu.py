"""torchtitan on a CPU: what its trainer takes for granted and a CPU test has not. Import this before it.

* Its device is the accelerator; here it is the CPU, so its process group is gloo. What it asks a device about its memory
  is answered with nothing.
* It imports kernels of expert parallelism, which need Triton, and `datasets`, for its own data. Neither is used in the
  tests, and together they are 300 MB: where they are not installed, empty modules stand in for those.
"""

import importlib.util
import sys
import types
from typing import Any

import torch._utils


class _Nothing(types.ModuleType):
    """A module that has every name, all of them useless."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


def _nothing(*arguments: Any, **_: Any) -> Any:
    # A decorator, with or without arguments, or an annotation.
    return arguments[0] if arguments and callable(arguments[0]) else _nothing


torch._utils._get_available_device_type = lambda: "cpu"
for question, answer in {
    "get_device_name": "CPU",
    "get_device_properties": types.SimpleNamespace(total_memory=1),
    "memory_stats": {},
    "reset_peak_memory_stats": None,
    "empty_cache": None,
}.items():
    if not hasattr(torch.cpu, question):
        setattr(torch.cpu, question, lambda *_, answer=answer: answer)
if importlib.util.find_spec("triton") is None:
    kernels = "torchtitan.distributed.minimal_async_ep.kernels"
    sys.modules[kernels] = _Nothing(kernels)
if importlib.util.find_spec("datasets") is None:
    for name in ("datasets", "datasets.distributed"):
        sys.modules[name] = _Nothing(name)
