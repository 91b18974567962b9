"""Runs scripts/demo and puts what it printed into README.md, between the markers, cut where the report is long."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARKED = re.compile(r"<!-- demo: begin -->.*?<!-- demo: end -->", re.DOTALL)
CUT = ["[…]", ""]
SECTIONS = (
    ("Where the time went", "Communication by phase"),
    ("Buckets ──", "  bucket           elements"),
    ("Tail ──", "Process groups"),
    ("What watching cost", "Losses and counts"),
)


def main():
    done = subprocess.run(
        [ROOT / "scripts" / "demo"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    lines = done.stdout.splitlines()

    def find(start):
        for number, line in enumerate(lines):
            if line.startswith(start):
                return number
        raise SystemExit(f"scripts/demo printed no line that begins with {start!r}")

    kept = lines[find("$ torchrun") : find("Tails of all ranks")]
    for first, behind in SECTIONS:
        kept += [*CUT, *lines[find(first) : find(behind)]]
    kept += [*CUT, next(line for line in lines if "books close" in line)]
    text = re.sub(r"demo-\d+-\d+", "demo", "\n".join(line.rstrip() for line in kept))
    text = re.sub(r"\n{3,}", "\n\n", text)
    block = (
        "<!-- demo: begin -->\n"
        "Real output of `scripts/demo` on two slow CPU cores; the report is cut at […]:\n\n"
        f"```text\n{text.strip()}\n```\n"
        "<!-- demo: end -->"
    )
    readme = ROOT / "README.md"
    readme.write_text(MARKED.sub(lambda _: block, readme.read_text()))


if __name__ == "__main__":
    main()
