"""The guided tour shows real output: every block of it is in a golden file."""

import re
from pathlib import Path

from tests.reports.golden import DIRECTORY

TOUR = Path(__file__).parents[2] / "docs" / "reading-a-report.md"


def test_every_block_of_the_tour_is_real_output():
    printed = "".join(
        (DIRECTORY / name).read_text(encoding="utf-8")
        for name in ("two_ranks_100.txt", "killed.txt", "profile_two_devices.txt", "fsdp2.txt")
    )
    blocks = re.findall(r"```text\n(.*?)```", TOUR.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 18
    for block in blocks:
        assert block.rstrip() in printed, block


def test_every_section_is_in_the_tour():
    tour = TOUR.read_text(encoding="utf-8")
    printed = "".join(
        (DIRECTORY / name).read_text(encoding="utf-8")
        for name in ("two_ranks_100.txt", "profile_two_devices.txt", "fsdp2.txt")
    )
    sections = set(re.findall(r"^([A-Z].*?|2 devices) ─+$", printed, re.MULTILINE))
    assert len(sections) == 19
    assert all(f"{title} ─" in tour for title in sections)
