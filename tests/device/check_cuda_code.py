"""Checks the machine code of CUDA kernels whose speed depends on it.

usage: check_cuda_code.py --cuobjdump PROGRAM --nvdisasm PROGRAM OBJECT...
Disassembles the kernels of SOURCES for all architectures, and applies RULES: kernel -> rule. Every rule needs a kernel.
Exit status 1 if there is a problem.
"""

from __future__ import annotations

import argparse
import fnmatch
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from check_cuda_resources import demangle

FUNCTION = re.compile(r"^\.text\.(\w+):")
LABEL = re.compile(r"^[.$]\S+:$")
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);")
#: Begins of the names of instructions that go somewhere else.
JUMPS = ("BRA", "BRX", "CALL", "EXIT", "JMP", "RET")
#: Division of 64 bits, which no device has.
DIVISION = re.compile(r"__cuda_sm\d+_(?:div|rem)_[su]64")
LANES = 4


@dataclass(frozen=True)
class Instruction:
    """One instruction, without its predicate."""

    name: str
    operands: str


#: Instructions that run one after the other, without labels and jumps between them.
Block = list[Instruction]


def functions(listing: str) -> dict[str, list[Block]]:
    """Returns the blocks of each kernel in the output of nvdisasm, by mangled names."""
    found: dict[str, list[Block]] = {}
    blocks: list[Block] = []
    for line in listing.splitlines():
        if begin := FUNCTION.match(line):
            blocks = found.setdefault(begin[1], [[]])
        elif LABEL.match(line):
            blocks.append([])
        elif one := INSTRUCTION.search(line):
            if not blocks:
                continue
            blocks[-1].append(Instruction(one[1], one[2]))
            if one[1].startswith(JUMPS):
                blocks.append([])
    return found


def is_wide(one: Instruction, access: str) -> bool:
    """Returns True for an access to global memory of 16 bytes a lane."""
    return one.name.startswith(access) and "128" in one.name.split(".")


def loads_in_flight(blocks: Sequence[Block]) -> Iterator[int]:
    """Yields the numbers of wide loads with neither a jump nor an addition of floats between them."""
    for block in blocks:
        loads = 0
        for one in block:
            if one.name.startswith("FADD"):
                yield loads
                loads = 0
            loads += is_wide(one, "LDG")
        yield loads


def loads_together(kernel: str, blocks: Sequence[Block]) -> str:
    """All rows of the gradient, and all rows of the residual, are loaded before an addition waits for one of them."""
    rows = int(re.findall(r"(\d+)>$", kernel)[0]) // LANES
    batches = sum(loads // rows for loads in loads_in_flight(blocks))
    return "" if batches >= 2 else f"{batches} of 2 arrays have their {rows} rows loaded in one go"


def without_division(_kernel: str, blocks: Sequence[Block]) -> str:
    """No division of 64 bits."""
    called = sum(DIVISION.search(one.operands) is not None for block in blocks for one in block)
    return f"{called} divisions of 64 bits" if called else ""


def wide_accesses(_kernel: str, blocks: Sequence[Block]) -> str:
    """16 bytes a lane are loaded and stored at once."""
    there = [one for block in blocks for one in block]
    missing = [access for access in ("LDG", "STG") if not any(is_wide(one, access) for one in there)]
    return f"no {' and no '.join(missing)} of 16 bytes" if missing else ""


Rule = Callable[[str, Sequence[Block]], str]
RULES: tuple[tuple[str, Rule], ...] = (
    ("group_topk_in_registers<*>", loads_together),
    ("scaled_in_registers<*>", loads_together),
    ("scaled_add<*>", without_division),
    ("reduce_sources<*>", wide_accesses),
)


#: Folders of the sources with these kernels.
SOURCES = ("group_topk", "scaled_cast", "reduce")


def problems(code: dict[str, list[Block]], where: str) -> tuple[list[str], set[str]]:
    """Returns the violations in kernels by readable names, and the patterns of RULES that fit a kernel."""
    found, used = [], set()
    for kernel, blocks in code.items():
        for pattern, rule in RULES:
            if fnmatch.fnmatchcase(kernel, pattern):
                used.add(pattern)
                if wrong := rule(kernel, blocks):
                    found.append(f"{kernel} ({where}): {wrong}")
    return found, used


def listings(objects: Sequence[Path], cuobjdump: str, nvdisasm: str) -> Iterator[tuple[str, str]]:
    """Yields architecture and listing of all machine code in the objects."""
    for path in objects:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [cuobjdump, "-xelf", "all", str(path.resolve())], cwd=folder, check=True, capture_output=True
            )
            for cubin in sorted(Path(folder).iterdir()):
                done = subprocess.run([nvdisasm, "-c", str(cubin)], check=True, capture_output=True, text=True)
                yield re.findall(r"sm_\d+", cubin.name)[-1], done.stdout


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuobjdump", required=True)
    parser.add_argument("--nvdisasm", required=True)
    parser.add_argument("objects", nargs="+", help="objects; those of other sources are passed over")
    arguments = parser.parse_args()
    paths = [Path(path) for path in ";".join(arguments.objects).split(";") if path.endswith(".cu.o")]
    objects = [path for path in paths if path.parent.name in SOURCES]
    found: list[str] = []
    unused = {pattern for pattern, _ in RULES}
    for architecture, listing in listings(objects, arguments.cuobjdump, arguments.nvdisasm):
        mangled = functions(listing)
        wrong, used = problems(dict(zip(demangle(mangled), mangled.values(), strict=True)), architecture)
        found += wrong
        unused -= used
    found += [f"no kernel is called {pattern}" for pattern in sorted(unused)]
    for problem in found:
        print(f"cuda_code: {problem}")
    print(f"cuda_code: {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
