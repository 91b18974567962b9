"""Compares models bit by bit."""

import hashlib

import torch
from torch import nn


def digest(model: nn.Module) -> str:
    """Return a hash of every bit of the parameters that this rank has."""
    total = hashlib.sha256()
    for parameter in model.parameters():
        local = getattr(parameter, "to_local", parameter.detach)()
        total.update(local.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
