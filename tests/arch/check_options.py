"""Checks that docs/options.md is fresh and that every option occurs in a C++ test.

usage: check_options.py --tool <sirtaki_options_doc> [--write]
The tool is built as target sirtaki_options_doc; --write refreshes the page instead of checking it.
"""

from __future__ import annotations

import argparse
import difflib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path("runtime/base/config/options.inc")
PAGE = Path("docs/options.md")
TESTS = Path("tests/unit")
ROW = re.compile(r"^SRT_OPTION\(\s*(\w+)\s*,\s*(\w+)\s*,", re.MULTILINE)


def option_names(table: str) -> list[str]:
    """Returns the names "section.key" of all rows of the table."""
    return [f"{section}.{key}" for section, key in ROW.findall(table)]


def untested(names: list[str], tests: list[str]) -> list[str]:
    """Returns the options that no test names in a string."""
    return [name for name in names if not any(f'"{name}"' in text for text in tests)]


def stale(page: str, generated: str) -> list[str]:
    """Returns the differences between the page and the output of the tool; empty if the page is fresh."""
    lines = difflib.unified_diff(page.splitlines(), generated.splitlines(), str(PAGE), "generated", lineterm="", n=0)
    return list(lines)


def problems(root: Path, generated: str) -> list[str]:
    """Returns all problems, one line each."""
    names = option_names((root / TABLE).read_text())
    found = [f"{TABLE}: no option found" for _ in range(not names)]
    tests = [path.read_text() for path in sorted((root / TESTS).rglob("*_test.cc"))]
    found += [f"{TABLE}: no test names the option {name}" for name in untested(names, tests)]
    page = (root / PAGE).read_text() if (root / PAGE).exists() else ""
    difference = stale(page, generated)
    if difference:
        found.append(f"{PAGE} is not what the option table says; run: check_options.py --tool <tool> --write")
        found += difference[:20]
    found += [f"{PAGE}: {name} is missing" for name in names if f"### {name}\n" not in generated]
    return found


def main() -> int:
    """Command line; the exit status is 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True, type=Path, help="the program that prints the page")
    parser.add_argument("--write", action="store_true", help="refresh the page")
    arguments = parser.parse_args()
    generated = subprocess.run(
        [arguments.tool.resolve()], check=True, capture_output=True, text=True, timeout=30
    ).stdout
    if arguments.write:
        (ROOT / PAGE).parent.mkdir(exist_ok=True)
        (ROOT / PAGE).write_text(generated)
    found = problems(ROOT, generated)
    print("\n".join(found) if found else f"{len(option_names((ROOT / TABLE).read_text()))} options checked")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
