"""TensorBoard: one scalar a value and step, in event files.

In: the values of steps. Out: `DIR/rank<rank>-<run>/events.out.tfevents.*`, which TensorBoard shows as a run of its own;
two writers in one directory would hide each other there. Written by tensorboardX, which needs neither TensorFlow nor
TensorBoard.
"""

import os
import time
from pathlib import Path
from typing import Any

from overlapwatch.metrics.run_of_rank import RunOfRank, need
from overlapwatch.metrics.tally import StepValues
from overlapwatch.metrics.tracker import key


class TensorBoard:
    """The backend.

    Args:
        directory: what is given to `tensorboard --logdir`.
        run: names the directory of this rank in it.

    Raises:
        ConfigurationError: tensorboardX is not installed.

    """

    def __init__(self, directory: Path, run: RunOfRank) -> None:
        need("tensorboardX", "tensorboardX", "tensorboard")
        self.directory = directory / run.name
        self.title = f"TensorBoard in {self.directory}"
        self._writer: Any = None

    def open(self) -> None:
        """Make the directory and the file."""
        # The plain writer: an error of the disk is raised where it happens, and no thread of it is forked.
        from tensorboardX.event_file_writer import EventsWriter  # noqa: PLC0415 - only when used

        self.directory.mkdir(parents=True, exist_ok=True)
        # Names are apart by the second only; a second watch may begin within it.
        suffix = f".{os.getpid()}.{time.monotonic_ns()}"
        self._writer = EventsWriter(str(self.directory / "events"), suffix)
        self._writer.flush()

    def log(self, steps: list[StepValues]) -> None:
        """Write the values of some steps."""
        from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415
        from tensorboardX.proto.summary_pb2 import Summary  # noqa: PLC0415

        for one in steps:
            scalars = [
                Summary.Value(tag=key(name), simple_value=value)
                for name, value in one.values.items()
            ]
            self._writer.write_event(
                Event(step=one.step, wall_time=one.unix_ns / 1e9, summary=Summary(value=scalars))
            )
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
