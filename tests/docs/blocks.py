"""The code blocks of README, docs and examples, with what a comment above a block says about it.

In: Markdown files. Out: `Block`s. A comment in front of a block is one of

    <!-- not run: REASON -->       nothing here can run it: the reason is for the reader of the source
    <!-- run by: tests/FILE.py -->  another test runs it; the test must name what the block starts
    <!-- given: NAME -->           a Python block: what it finds defined (see `snippets_job.py`)
    <!-- file: NAME -->            the block is this file, and the page's commands are run in order, in one directory
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
)
_COMMENT = re.compile(r"<!--\s*(not run|run by|given|file):\s*(.*?)\s*-->", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One code block.

    Args:
        page: relative to the repository.
        line: of its fence, 1 is the first.
        language: the word behind the fence; "" for an indented block.
        text: without fences.
        said: (what, value) of the comment in front, or None.
    """

    page: str
    line: int
    language: str
    text: str
    said: tuple[str, str] | None

    @property
    def place(self) -> str:
        """PAGE:LINE."""
        return f"{self.page}:{self.line}"


@cache
def blocks() -> tuple[Block, ...]:
    """Return the code blocks of all pages, in order."""
    return tuple(block for page in PAGES for block in _blocks_of(page))


def _blocks_of(page: Path) -> list[Block]:
    found, said = [], None
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block"):
            language = token.info.split()[0] if token.info else ""
            name = str(page.relative_to(ROOT))
            found.append(Block(name, (token.map or [0])[0] + 1, language, token.content, said))
        comment = _COMMENT.search(token.content) if token.type == "html_block" else None
        said = (comment[1], comment[2]) if comment else None
    return found


def commands(text: str) -> list[str]:
    """Split a shell block into commands: lines that end in a backslash, or inside quotes, go on in the next."""
    found, so_far = [], ""
    for line in text.splitlines():
        so_far += line + "\n"
        if line.endswith("\\") or _bare(so_far).count('"') % 2:
            continue
        if _bare(so_far).strip():
            found.append(_bare(so_far).strip())
        so_far = ""
    assert not so_far.strip(), f"a command without an end: {so_far}"
    return found


def _bare(command: str) -> str:
    """Leave comments out: a # behind a space, to the end of its line."""
    return re.sub(r"(^|\s)#[^\n]*", r"\1", command)
