"""Links of Markdown pages lead to files, and a link whose text is a name in backquotes leads to a file that has it.

`[`Job::run`](../../launcher/job.cc)` requires that launcher/job.cc defines or declares Job::run.

usage: check_links.py [root]
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from source_tree import Problem, report

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
NAME = re.compile(r"`([A-Za-z_]\w*(?:::~?\w+)?)(?:\(\))?`")
FENCE = re.compile(r"^(```|~~~)")


def without_code(text: str) -> str:
    """Returns a text of the same length, with blanks for the lines of code blocks."""
    fenced, lines = False, []
    for line in text.split("\n"):
        if FENCE.match(line):
            fenced = not fenced
        lines.append(" " * len(line) if fenced else line)
    return "\n".join(lines)


def links_of(text: str) -> Iterator[tuple[int, str, str]]:
    """Yields line, text and target of each link outside code blocks; a text may go on in the next line."""
    prose = without_code(text)
    for match in LINK.finditer(prose):
        yield prose.count("\n", 0, match.start()) + 1, " ".join(match[1].split()), match[2]


def has_name(name: str, text: str) -> bool:
    """Returns whether a source file has `name`: Class::function as it is defined, or any word."""
    if "::" in name:
        return re.search(rf"(?<![\w:]){re.escape(name)}\s*\(", text) is not None
    return re.search(rf"\b{name}\b", text) is not None


def link_problems(root: Path, pages: list[str]) -> Iterator[Problem]:
    """Yields links of `pages` that lead nowhere, or to a file without the name they give."""
    for page in pages:
        for line, label, target in links_of((root / page).read_text()):
            path = target.split("#")[0]
            if not path or ":" in path:
                continue
            file = (root / page).parent / path
            if not file.exists():
                yield Problem(page, line, "link", f"{target} does not exist")
                continue
            name = NAME.fullmatch(label)
            if name and file.suffix in {".h", ".cc", ".py"} and not has_name(name[1], file.read_text()):
                yield Problem(page, line, "link", f"{path} has no {name[1]}")


def pages_of(root: Path) -> list[str]:
    """Returns the Markdown pages under version control."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    found = subprocess.run(command, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return [page for page in found.stdout.splitlines() if (root / page).exists()]


def main() -> int:
    """Command line."""
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    return 0 if report(link_problems(root, pages_of(root))) else 1


if __name__ == "__main__":
    sys.exit(main())
