"""A `.nsys-rep` -> its sqlite export, made by the user's own `nsys` into a temporary place.

In: the path of a report. Out: the path of an sqlite file that is gone after use. Nothing is written beside
the report. Without `nsys` there is no reader for this format: one sentence says the command to run.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from overlapwatch.errors import InputError

SUFFIXES = (".nsys-rep", ".qdrep")


def is_report_file(path: Path) -> bool:
    """Say whether this is a report of Nsight Systems, by its name: the format is not documented."""
    return path.suffix in SUFFIXES and path.is_file()


@contextmanager
def exported(path: Path) -> Iterator[Path]:
    """Export the report for as long as the context lasts.

    Raises:
        InputError: there is no `nsys`, or its export failed.
    """
    wanted = path.with_suffix(".sqlite").name
    nsys = shutil.which("nsys")
    if nsys is None:
        raise InputError(
            f"{path}: nsys is not on PATH; run where it is: "
            f"nsys export --type sqlite --include-blobs=true --output {wanted} {path.name}"
        )
    with tempfile.TemporaryDirectory(prefix="overlapwatch-") as place:
        target = Path(place) / wanted
        command = [nsys, "export", "--type", "sqlite", "--output", str(target)]
        failure = _run([*command, "--include-blobs=true", str(path)])
        if failure:  # older releases do not know the option
            failure = _run([*command, str(path)]) and failure
        if failure or not target.exists():
            raise InputError(f"{path}: nsys export failed: {failure or 'it wrote nothing'}")
        yield target


def _run(command: list[str]) -> str:
    """Run it; return "" or the last thing it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the user's own nsys
    except OSError as error:
        return str(error)
    if done.returncode == 0:
        return ""
    said = (done.stderr or done.stdout).strip().splitlines()
    return said[-1] if said else f"exit code {done.returncode}"
