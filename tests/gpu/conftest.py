"""Real-GPU tests: skipped with a reason where there is none; `scripts/gpu_check` runs them and prints their numbers."""

import pytest


@pytest.fixture(scope="session")
def cuda():
    """torch, on a machine where it has a CUDA device."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device that torch can use")
    torch.cuda.init()
    return torch


@pytest.fixture
def number(record_property):
    """Note a number for the table of `scripts/gpu_check`."""

    def note(name, value, unit=""):
        text = f"{value:.3g}" if isinstance(value, float) else str(value)
        record_property(name, f"{text} {unit}".strip())

    return note
