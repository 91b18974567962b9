"""What `fully_shard` made of a model: its units, their parameter groups, and what to call them.

In: a model in which some modules are wrapped by `fully_shard`. Out: one `Unit` for each call of `fully_shard`, with one
`Group` for each of its parameter groups: one, as a rule; none where all parameters were taken by units further in;
several where `shard_placement_fn` puts parameters on several meshes. A group is what is gathered and reduced in one
collective.

PyTorch has no public way to read a unit's communicators, its groups or whether it is unsharded. Everything private
that we read or put in front of a method is in this module, and in `PRIVATE`: where a version of PyTorch lacks one of
these names, watching says so in one sentence.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from overlapwatch.hooks.ddp_layout import plain_name
from overlapwatch.hooks.names import Names
from overlapwatch.vocabulary import NameKind

PRIVATE_OF_STATE = ("_modules", "_pre_forward", "_post_forward", "_pre_backward")
PRIVATE_OF_GROUP = (
    "fsdp_params",
    "is_unsharded",
    "mesh_info",
    "mp_policy",
    "post_backward",
    "reduce_grads",
    "_all_gather_comm",
    "_reduce_scatter_comm",
)


@dataclass(slots=True, eq=False)
class Group:
    """One parameter group: what one all-gather and one reduce-scatter carry.

    Args:
        raw: PyTorch's object.
        owner: id of its MODULE Name.
        text: that name.
        size: bytes of its unsharded parameters, without padding.
        replicas: the process group over which HSDP all-reduces its gradients; None without HSDP.
    """

    raw: Any
    owner: int
    text: str
    size: int
    replicas: Any

    @property
    def unsharded(self) -> bool:
        """Whether its unsharded parameters are in memory, ready to be used."""
        return bool(self.raw.is_unsharded)

    @property
    def reduces(self) -> bool:
        """Whether the next backward will reduce its gradients."""
        return bool(self.raw.reduce_grads) and any(
            parameter.sharded_param.requires_grad for parameter in self.raw.fsdp_params
        )

    @property
    def kept_part(self) -> int:
        """Bytes that stay between forward and backward where `reshard_after_forward` is a number; 0 else."""
        mesh = getattr(self.raw, "post_forward_mesh_info", None)
        if mesh is None or not getattr(self.raw, "is_sharded_post_forward", False):
            return 0
        return self.size // int(mesh.shard_mesh_size)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Yield its sharded parameters: those that an optimizer holds."""
        for parameter in self.raw.fsdp_params:
            yield parameter.sharded_param


@dataclass(slots=True, eq=False)
class Unit:
    """One call of `fully_shard`.

    Args:
        state: PyTorch's object.
        modules: the module, or the modules that were wrapped together.
        owner: id of its MODULE Name.
        groups: its parameter groups.
        device: where its collectives run.
    """

    state: Any
    modules: tuple[torch.nn.Module, ...]
    owner: int
    groups: tuple[Group, ...]
    device: torch.device
    seen: set[int] = field(default_factory=set)  # modules of it that have run in this forward
    in_backward: bool = False


def fsdp_module_type() -> Any:
    """Return the type of modules that `fully_shard` has wrapped; None where nobody has imported it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return getattr(fsdp, "FSDPModule", None)


def wrapped_modules(model: torch.nn.Module) -> list[tuple[str, Any]]:
    """Return (name in the model, module) of what `fully_shard` has wrapped, outermost first."""
    kind = fsdp_module_type()
    if kind is None:
        return []
    return [(_plain(name), one) for name, one in model.named_modules() if isinstance(one, kind)]


def groups_of(state: Any) -> list[Any]:
    """Return PyTorch's parameter groups of a unit; before 2.12 there was at most one."""
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    one = getattr(state, "_fsdp_param_group", None)
    return [] if one is None else [one]


def missing_in(state: Any) -> list[str]:
    """Return the private names that this PyTorch does not have."""
    missing = [name for name in PRIVATE_OF_STATE if not hasattr(state, name)]
    return missing + [
        name
        for group in groups_of(state)[:1]
        for name in PRIVATE_OF_GROUP
        if not hasattr(group, name)
    ]


def device_of(model: torch.nn.Module) -> torch.device:
    """Return where the collectives of a model run: with CPU offload that is not where its parameters are."""
    for _, module in wrapped_modules(model):
        device = getattr(module._get_fsdp_state(), "_device", None)  # noqa: SLF001
        if isinstance(device, torch.device):
            return device
    return torch.device("cpu")


def read_units(model: torch.nn.Module, label: str, names: Names) -> list[Unit]:
    """Return the units of a model, outermost first.

    Args:
        model: holds the wrapped modules.
        label: what goes before names; "" when the model is the only one.
        names: where names are made known.
    """
    prefix = f"{label}: " if label else ""
    fqn_of = {id(module): _plain(name) for name, module in model.named_modules()}
    units: list[Unit] = []
    seen: set[int] = set()
    for _, module in wrapped_modules(model):
        state = module._get_fsdp_state()  # noqa: SLF001
        if id(state) in seen:  # wrapped together with one that we have
            continue
        seen.add(id(state))
        modules = tuple(state._modules)  # noqa: SLF001
        texts = [fqn_of.get(id(one), "") or _type_name(one) for one in modules]
        text = prefix + ", ".join(texts)
        raw = groups_of(state)
        groups = tuple(
            _read_group(
                one,
                f"{text} [{place + 1} of {len(raw)}]" if len(raw) > 1 else text,
                prefix,
                fqn_of,
                names,
            )
            for place, one in enumerate(raw)
        )
        owner = groups[0].owner if len(groups) == 1 else names.intern(NameKind.MODULE, text)
        device = getattr(state, "_device", torch.device("cpu"))
        units.append(Unit(state, modules, owner, groups, device))
    return units


def name_of(model: torch.nn.Module) -> str:
    """Return what to call a model that has no name: its type's, without what wrappers made of it."""
    return _type_name(getattr(model, "_orig_mod", model))


def _type_name(module: torch.nn.Module) -> str:
    kind = type(module)
    place = getattr(kind, "_orig_cls_mro_index", None)  # `fully_shard` put two types in front
    return kind.__mro__[place if isinstance(place, int) else 0].__name__


def _plain(name: str) -> str:
    return plain_name(f"{name}.").removesuffix(".")


def _read_group(raw: Any, text: str, prefix: str, fqn_of: dict[int, str], names: Names) -> Group:
    ids, elements, size, dtypes = [], 0, 0, []
    for parameter in raw.fsdp_params:
        where = parameter._module_info  # noqa: SLF001
        fqn = fqn_of.get(id(where.module), "")
        name = f"{fqn}.{where.param_name}" if fqn else str(where.param_name)
        sharded = parameter.sharded_param
        count = torch.Size(getattr(parameter, "_orig_size", sharded.shape)).numel()
        dtype = raw.mp_policy.param_dtype or sharded.dtype
        word = str(dtype).removeprefix("torch.")
        ids.append(
            names.intern(NameKind.PARAMETER, prefix + name, (), count, count * dtype.itemsize, word)
        )
        elements += count
        size += count * dtype.itemsize
        dtypes.append(word)
    dtype_text = dtypes[0] if len(set(dtypes)) == 1 else ""
    owner = names.intern(NameKind.MODULE, text, tuple(ids), elements, size, dtype_text)
    return Group(raw, owner, text, size, getattr(raw.mesh_info, "replicate_process_group", None))
