"""The public Python API is that of python_api.txt, so that no name or signature changes unseen, and is documented."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

import griffe
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import docstrings
import python_api


@pytest.fixture(scope="module")
def package() -> griffe.Module:
    return python_api.load()


def test_names_and_signatures_are_those_of_the_list(package: griffe.Module) -> None:
    lines = (text.splitlines() for text in (python_api.LIST.read_text(), python_api.api_text(package)))
    changes = "\n".join(difflib.unified_diff(*lines, "python_api.txt", "the sources", lineterm="", n=1))
    assert not changes, (
        f"the public Python API has changed:\n{changes}\nIf that is meant, run {python_api.COMMAND}, and add a line to "
        "CHANGELOG.md; CONTRIBUTING.md says how a name is deprecated before it goes"
    )


def test_every_package_without_underscore_is_listed(package: griffe.Module) -> None:
    missing = set(python_api.packages(package)) - set(python_api.PUBLIC)
    assert missing == set(), "add these to PUBLIC of python_api.py, and to `nav` of mkdocs.yml"


def write_package(folder: Path, text: str) -> griffe.Module:
    (folder / "sirtaki").mkdir(exist_ok=True)
    (folder / "sirtaki/__init__.py").write_text(text)
    return python_api.load(folder)


def test_a_changed_signature_and_an_inherited_method_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_api, "PUBLIC", ("sirtaki",))
    source = "class _Base:\n    def f(self, x: int = 1) -> None: ...\nclass Derived(_Base):\n    y: int\ndef g(): ...\n"
    listed = "# sirtaki\nclass Derived(_Base)\n  f(x: int = 1) -> None\n  y: int\ng()\n"
    assert python_api.api_text(write_package(tmp_path, source)) == listed
    other = python_api.api_text(write_package(tmp_path, source.replace("= 1", "= 2")))
    assert other == listed.replace("= 1", "= 2")


def test_every_parameter_is_explained(package: griffe.Module) -> None:
    assert docstrings.unexplained(package) == []


def test_every_result_is_explained(package: griffe.Module) -> None:
    assert docstrings.without_result(package) == []


def test_every_error_that_a_function_raises_is_explained(package: griffe.Module) -> None:
    assert docstrings.unexplained_errors(package) == []


def test_a_parameter_without_explanation_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_api, "PUBLIC", ("sirtaki",))
    source = (
        'def f(a, b):\n    """Adds.\n\n    Args:\n        a: one.\n    """\n'
        'def g(a, b):\n    """Adds `a` and `b`."""\n'
        'def h(a, b):\n    """Starts it; see f()."""\n'
    )
    assert docstrings.unexplained(write_package(tmp_path, source)) == ["sirtaki.f: b"]


def test_a_result_and_an_error_without_explanation_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_api, "PUBLIC", ("sirtaki",))
    source = (
        'def f() -> int:\n    """Adds."""\n    raise ValueError("no")\n'
        'def g() -> int:\n    """Returns 1.\n\n    Raises:\n        KeyError: always.\n    """\n    raise KeyError(1)\n'
        'def h() -> None:\n    """Starts it."""\n    def inner():\n        raise OSError\n'
    )
    package = write_package(tmp_path, source)
    assert docstrings.without_result(package) == ["sirtaki.f"]
    assert docstrings.unexplained_errors(package) == ["sirtaki.f: ValueError"]
