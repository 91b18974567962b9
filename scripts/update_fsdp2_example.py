"""Runs examples/fsdp2 and puts what was printed into its README, between the markers, cut where it is long."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "examples" / "fsdp2" / "README.md"
MARKED = re.compile(r"<!-- output: begin -->.*?<!-- output: end -->", re.DOTALL)
TRAIN = "torchrun --standalone --nproc-per-node 2 examples/fsdp2/train.py --log-dir runs/fsdp2"
REPORT = "overlapwatch report runs/fsdp2"
SECTIONS = (("Communication by module", "Queues on"), ("Memory of unsharded", "Tail ──"))


def run(command, directory):
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OVERLAPWATCH_LINE_EVERY": "10",
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    words = command.replace("examples/", f"{ROOT}/examples/").split()
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, cwd=directory, env=environment
    )
    return ["$ " + command, "", *done.stdout.splitlines(), ""]


def cut(lines):
    kept = []
    for first, behind in SECTIONS:
        numbers = [n for n, line in enumerate(lines) if line.startswith((first, behind))]
        if len(numbers) < 2:
            raise SystemExit(f"the report has no section {first!r} with {behind!r} behind it")
        kept += ["[…]", "", *lines[numbers[0] : numbers[1]]]
    return [*kept, "[…]", "", next(line for line in lines if "books close" in line)]


def main():
    with tempfile.TemporaryDirectory() as directory:
        train = run(TRAIN, directory)
        report = run(REPORT, directory)
    text = "\n".join(line.rstrip() for line in (*train, *report[:2], *cut(report)))
    block = (
        "<!-- output: begin -->\n"
        "Real output on two slow CPU cores; the report is cut at […]:\n\n"
        f"```text\n{text.strip()}\n```\n"
        "<!-- output: end -->"
    )
    README.write_text(MARKED.sub(lambda _: block, README.read_text()))


if __name__ == "__main__":
    main()
