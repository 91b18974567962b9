"""PyTorch profiler traces (Kineto, JSON or JSON.gz) -> Recordings, one for each device in a file.

In: a trace, or a directory of them. Out: Recordings whose timelines hold kernels, copies,
collectives with what their calls were given, steps and annotations. The file is streamed and opened
for reading only; what cannot be read or used is counted, with the reason. Environment variables,
command lines and paths that a trace carries are not taken over.
"""

from overlapwatch.sources.kineto.reading import is_kineto, open_kineto

__all__ = ["is_kineto", "open_kineto"]
