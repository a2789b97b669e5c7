"""Hook of MkDocs: makes the site of README.md and docs/, and of every file that their links lead to.

README.md is the first page. A file outside docs/ that a page links to gets a page below source/, or is copied if it is
a picture, so links between files of the repository hold on the site without a server of sources. The pages of the
Python API are made here, too, one for each public module.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/arch"), str(ROOT / "tests/api")]

from check_links import LINK, links_of, without_code  # noqa: E402
from python_api import PUBLIC  # noqa: E402

DOCS = "docs/"
HOME = "README.md"
#: Languages of Markdown fences by suffix; files with other suffixes are copied.
LANGUAGES = {".h": "cpp", ".cc": "cpp", ".c": "c", ".inc": "cpp", ".py": "python", ".toml": "toml", ".sh": "bash"}
REFERENCE = "reference"
OPTIONS = "    options:\n      show_root_toc_entry: false\n"


def site_path(path: str) -> str:
    """Returns the place in the site of a file of the repository."""
    if path == HOME:
        return "index.md"
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    return f"source/{path}.md" if PurePosixPath(path).suffix in LANGUAGES else f"source/{path}"


def repository_path(place: str) -> str:
    """Returns the file of the repository that a Markdown page of the site shows."""
    if place == "index.md":
        return HOME
    return place.removeprefix("source/") if place.startswith("source/") else f"{DOCS}{place}"


def target_path(page: str, target: str) -> str | None:
    """Returns the file of the repository that a link of `page` leads to; None for a link elsewhere, or to a folder."""
    path = target.partition("#")[0]
    if not path or ":" in path:
        return None
    found = normpath(f"{PurePosixPath(page).parent}/{path}")
    return found if (ROOT / found).is_file() else None


def linked_files() -> Iterator[str]:
    """Yields the files that README.md and the pages of docs/ lead to, directly or by a page outside docs/."""
    todo = [HOME, *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / DOCS).rglob("*.md")))]
    seen = set(todo)
    while todo:
        page = todo.pop()
        for _, _, target in links_of((ROOT / page).read_text()):
            path = target_path(page, target)
            if path is None or path in seen:
                continue
            seen.add(path)
            if path.endswith(".md"):
                todo.append(path)
            if not path.startswith(DOCS):
                yield path


def source_page(path: str) -> str:
    """Returns the page that shows a source file."""
    fence = "`" * 4
    language = LANGUAGES[PurePosixPath(path).suffix]
    return f"# {path}\n\n{fence} {{.{language} linenums=1}}\n{(ROOT / path).read_text()}{fence}\n"


def rewrite(markdown: str, page: str) -> str:
    """Returns the text of a page whose links lead to the places of their files in the site."""
    place = site_path(page)

    def moved(match: re.Match[str]) -> str:
        path = target_path(page, match[2])
        if path is None:
            return match[0]
        _, mark, anchor = match[2].partition("#")
        return f"[{match[1]}]({relpath(site_path(path), str(PurePosixPath(place).parent))}{mark}{anchor})"

    done, parts = 0, []
    for match in LINK.finditer(without_code(markdown)):
        parts += [markdown[done : match.start()], moved(match)]
        done = match.end()
    return "".join([*parts, markdown[done:]])


def on_files(files: Any, config: Any) -> Any:
    """Adds the first page, the files outside docs/ and the pages of the API."""

    def add(place: str, content: str | None = None, path: str | None = None) -> None:
        source = None if path is None else str(ROOT / path)
        files.append(File.generated(config, place, content=content, abs_src_path=source))

    add(site_path(HOME), content=(ROOT / HOME).read_text())
    for path in linked_files():
        suffix = PurePosixPath(path).suffix
        if suffix in LANGUAGES:
            add(site_path(path), content=source_page(path))
        elif suffix == ".md":
            add(site_path(path), content=(ROOT / path).read_text())
        else:
            add(site_path(path), path=path)
    for module in PUBLIC:
        add(f"{REFERENCE}/{module}.md", content=f"# {module}\n\n::: {module}\n{OPTIONS}")
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites the links of a page."""
    place = page.file.src_uri
    generated = place.startswith(f"{REFERENCE}/") or place.endswith(tuple(f"{suffix}.md" for suffix in LANGUAGES))
    return markdown if generated else rewrite(markdown, repository_path(place))


#: MkDocs calls these.
HOOKS: tuple[Callable[..., Any], ...] = (on_files, on_page_markdown)
