"""Where events are born: the hooks that watch a model, and the recorder they write to."""

_installed: list[str] = []


def installed() -> list[str]:
    """Return the names of what is installed in the process right now. Empty before a watch and after its close."""
    return list(_installed)


def note_installed(name: str) -> None:
    """Remember that a hook of this name is in."""
    _installed.append(name)


def note_removed(name: str) -> None:
    """Remember that a hook of this name is out."""
    if name in _installed:
        _installed.remove(name)
