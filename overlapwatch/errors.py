"""The exceptions a user can meet: two, each carrying one sentence that says what is wrong, where, and what to do.

A command prints the sentence and exits with a code; `watch()` raises it. What goes wrong *while* a job is
watched is never raised: the watch turns itself off with one warning.
"""


class OverlapwatchError(Exception):
    """Base of everything this package raises on purpose."""


class ConfigurationError(OverlapwatchError):
    """What was asked for cannot be done: a model that is not wrapped, an unknown setting or mode."""


class InputError(OverlapwatchError):
    """A file or directory cannot be read as what it should be."""
