"""Rules on single files: forbidden patterns, the length of files, the opening of headers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from class_size import MAX_LINES as MAX_CLASS_LINES
from class_size import MAX_MEMBERS, class_sizes
from source_tree import Problem, Source, Tree

MAX_LINES = 500
PURE = ("scheduler/", "runtime/control/", "compression/", "kernels/")
CORE = ("runtime/", "kernels/", "compression/", "scheduler/", "adapters/")
SHIPPED = (*CORE, "launcher/", "examples/")
CHECKER = "tests/arch/"  # the checkers name the patterns that they forbid


@dataclass(frozen=True)
class Absence:
    """A pattern that must not occur in the code of files below `where`, except in `allowed` files.

    With `only_with`, only files whose code matches that as well are checked.
    """

    rule: str
    pattern: re.Pattern[str]
    where: tuple[str, ...]
    text: str
    allowed: frozenset[str] = frozenset()
    only_with: re.Pattern[str] | None = None


ABSENCES = (
    Absence(
        "getenv",
        re.compile(r"\b(secure_)?getenv\s*\("),
        SHIPPED,
        "the environment is read by runtime/base/config/config_load.cc and job_env.cc alone",
        frozenset({"runtime/base/config/config_load.cc", "runtime/base/config/job_env.cc"}),
    ),
    Absence(
        "have",
        re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|elif)\b[^\n]*\bHAVE_\w+", re.MULTILINE),
        SHIPPED,
        "optional parts are an interface with x.cc or no_x.cc chosen by CMake",
    ),
    Absence(
        "pure",
        re.compile(
            r"\bstd::(j?thread|(shared_|recursive_|timed_)*mutex|condition_variable(_any)?|async|future|promise)\b"
            r"|<(thread|mutex|shared_mutex|condition_variable|future|fstream|sys/socket\.h|unistd\.h)>"
            r"|\b(steady|system|high_resolution)_clock::now\b|\bclock_gettime\s*\(|\bsocket\s*\("
            r"|\brandom_device\b|\brand\s*\("
        ),
        PURE,
        "this layer is pure: no thread, lock, clock, socket, file or random device",
    ),
    Absence(
        "sleep",
        re.compile(r"\b(sleep_for|sleep_until|usleep|nanosleep|sleep)\s*\("),
        ("tests/", "runtime/", "scheduler/", "compression/", "kernels/"),
        "wait for an event with a deadline instead of sleeping",
    ),
    Absence(
        "abort",
        re.compile(r"\bstd::(abort|terminate|exit|_Exit|quick_exit)\b|\b_exit\s*\("),
        CORE,
        "the user's process is never ended by the runtime",
    ),
    Absence(
        "global",
        re.compile(
            r"^[ \t]*(?:inline[ \t]+)?(?:(?:static|thread_local)[ \t]+)+"
            r"(?!const\b|constexpr\b|constinit const\b|inline\b|_Thread_local const\b)"
            r"[\w:<>,*& \t]+?[ \t*&>]\w+(?:\[\w*\])?[ \t]*(?:=[^=]|;|\{)",
            re.MULTILINE,
        ),
        ("runtime/", "kernels/", "compression/", "scheduler/", "adapters/", "launcher/"),
        "no mutable global or static: state belongs to an object",
        frozenset({"adapters/c/default_session.cc", "adapters/c/last_error.cc"}),
    ),
    Absence(
        "detach",
        re.compile(r"\.\s*detach\s*\(\s*\)"),
        CORE,
        "threads are joined, never detached",
        # A call of NCCL may wait for ever for a GPU that hangs.
        frozenset({"runtime/net/device/nccl/teardown.cc"}),
        only_with=re.compile(r"\bstd::j?thread\b"),
    ),
    # The same check of clang-tidy also forbids strerror, which is safe since glibc 2.32.
    Absence(
        "unsafe",
        re.compile(
            r"\b(strtok|localtime|gmtime|ctime|asctime|inet_ntoa|gethostbyname|getpwuid|getpwnam|setenv|putenv"
            r"|unsetenv|tmpnam|mktemp)\s*\("
        ),
        (*CORE, "launcher/"),
        "not safe in a process with threads",
    ),
    Absence(
        "new",
        # A smart pointer on the same line takes ownership; placement new owns nothing.
        re.compile(r"^(?![^\n]*_ptr<)[^\n]*?(?<!operator )\b(?:new|delete)\b(?=\s*[\w:\[])", re.MULTILINE),
        ("runtime/", "kernels/", "compression/", "scheduler/", "launcher/"),
        "values and unique_ptr own memory",
    ),
)
TODO = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
USING = re.compile(r"^[ \t]*using\s+namespace\b", re.MULTILINE)
USING_NAME = re.compile(r"^[ \t]*using\s+(?:[\w:]+::)?(\w+)\s*(?:;|=[^;]*;)", re.MULTILINE)
# Names of types that templates look up.
READ_BY_TEMPLATES = {
    *("value_type", "iterator", "result_type", "is_transparent", "promise_type"),
    *("rep", "period", "duration", "time_point"),
}
# Framework -> the parts of the Python package that may import it.
FRAMEWORKS = {
    "torch": (
        "adapters/python/sirtaki/torch/",
        "adapters/python/sirtaki/_torchrun.py",
        "adapters/python/sirtaki_backend/",
        "adapters/python/sirtaki/keras/_torch.py",
    ),
    "tensorflow": ("adapters/python/sirtaki/tensorflow/", "adapters/python/sirtaki/keras/_tensorflow.py"),
    "keras": ("adapters/python/sirtaki/keras",),
}


def absence_problems(source: Source) -> Iterator[Problem]:
    """Yields the hits of ABSENCES in one file."""
    if source.path.startswith(CHECKER):
        return
    for row in ABSENCES:
        if not source.path.startswith(row.where) or source.path in row.allowed:
            continue
        if not source.is_cpp and row.rule != "sleep":
            continue
        if row.only_with is not None and row.only_with.search(source.code) is None:
            continue
        for line, text in source.matches(row.pattern):
            yield Problem(source.path, line, row.rule, f"'{text}': {row.text}")


def header_problems(source: Source) -> Iterator[Problem]:
    """Checks that a header opens with a comment and a guard, and has no using namespace."""
    lines = source.text.splitlines()
    opening = 0
    while opening < len(lines) and lines[opening].startswith(("//", "/*", " *")):
        opening += 1
    if opening < 1:
        yield Problem(source.path, 1, "comment", "a header opens with what it is for, its owner and its thread")
    guarded = "#pragma once" in source.text or "HWY_TARGET_TOGGLE" in source.text
    if not guarded and not re.search(r"#ifndef \w+_H_\n#define", source.text):
        yield Problem(source.path, 1, "guard", "no #pragma once")
    for line, text in source.matches(USING):
        yield Problem(source.path, line, "using", f"'{text}' in a header")


def own_header_problems(tree: Tree, source: Source) -> Iterator[Problem]:
    """Checks that x.cc includes x.h before anything else, which proves the header self-contained."""
    own = source.path.rsplit(".", 1)[0] + ".h"
    if own in tree.sources and source.includes and source.includes[0].name != own:
        yield Problem(source.path, source.includes[0].line, "own_header", f'include "{own}" first')


def unused_using_problems(source: Source) -> Iterator[Problem]:
    """Yields using declarations and aliases that their source file does not use. clang-tidy gets several files at once
    and checks only one of them.
    """
    for match in USING_NAME.finditer(source.code):
        rest = source.code[: match.start()] + source.code[match.end() :]
        if match[1] not in READ_BY_TEMPLATES and re.search(rf"\b{match[1]}\b", rest) is None:
            line = source.code.count("\n", 0, match.end()) + 1
            yield Problem(source.path, line, "unused_using", f"nothing here says {match[1]}")


def text_problems(source: Source) -> Iterator[Problem]:
    """Checks the length of a file, and that it has no left-over notes."""
    lines = source.text.splitlines()
    if len(lines) > MAX_LINES:
        yield Problem(source.path, len(lines), "length", f"{len(lines)} lines; split before {MAX_LINES}")
    if source.path.startswith(CHECKER):
        return
    for number, line in enumerate(lines, 1):
        if TODO.search(line):
            yield Problem(source.path, number, "todo", "finish it, or write it down outside the code")


def class_problems(source: Source) -> Iterator[Problem]:
    """Yields classes of the product that are too large to have one job."""
    if not source.is_cpp or not source.path.startswith(SHIPPED):
        return
    for size in class_sizes(source):
        if size.members > MAX_MEMBERS:
            text = f"{size.name} has {size.members} data members; split it before {MAX_MEMBERS}"
            yield Problem(source.path, size.line, "class_size", text)
        if size.lines > MAX_CLASS_LINES:
            text = f"{size.name} has {size.lines} lines; split it before {MAX_CLASS_LINES}"
            yield Problem(source.path, size.line, "class_size", text)


def python_problems(source: Source) -> Iterator[Problem]:
    """Checks that frameworks are imported only where they belong."""
    if not source.path.startswith("adapters/python/"):
        return
    for framework, home in FRAMEWORKS.items():
        if source.path.startswith(home):
            continue
        pattern = re.compile(rf"^[ \t]*(?:import|from)[ \t]+{framework}\b", re.MULTILINE)
        for line, text in source.matches(pattern):
            yield Problem(source.path, line, "framework", f"'{text}' belongs under {home[0]}")


# Functions of torch that use its default device and dtype, which belong to the program, and the arguments that replace
# them.
DEVICE_AND_TYPE = frozenset({"device", "dtype"})
MADE_BY_DEFAULTS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("empty", "zeros", "ones", "full", "tensor", "arange", "eye", "linspace"), DEVICE_AND_TYPE),
    **dict.fromkeys(("rand", "randn", "randint", "randperm", "empty_strided", "scalar_tensor"), DEVICE_AND_TYPE),
    **dict.fromkeys(("sparse_coo_tensor", "asarray", "as_tensor"), DEVICE_AND_TYPE),
    "frombuffer": frozenset({"dtype"}),
    "Generator": frozenset({"device"}),
}


def default_problems(source: Source) -> Iterator[Problem]:
    """Checks that tensors of the package name their device and dtype: a program may have set other defaults."""
    if not source.path.startswith(FRAMEWORKS["torch"]):
        return
    try:
        calls = [node for node in ast.walk(ast.parse(source.text)) if isinstance(node, ast.Call)]
    except SyntaxError:
        return  # ruff reports it
    for call in calls:
        function = call.func
        of_torch = isinstance(function, ast.Attribute) and getattr(function.value, "id", None) == "torch"
        if not of_torch or any(word.arg is None for word in call.keywords):
            continue
        missing = MADE_BY_DEFAULTS.get(function.attr, frozenset()) - {word.arg for word in call.keywords}
        if missing:
            text = f"torch.{function.attr}() without {' and '.join(sorted(missing))} follows the program's defaults"
            yield Problem(source.path, call.lineno, "defaults", text)


def source_problems(tree: Tree) -> Iterator[Problem]:
    """Yields the problems of all rules of this module over the tree."""
    for source in tree.sources.values():
        yield from absence_problems(source)
        yield from text_problems(source)
        yield from class_problems(source)
        if source.is_header:
            yield from header_problems(source)
        elif source.is_cpp:
            yield from own_header_problems(tree, source)
            if not source.path.endswith(".inc"):
                yield from unused_using_problems(source)
        else:
            yield from python_problems(source)
            yield from default_problems(source)
