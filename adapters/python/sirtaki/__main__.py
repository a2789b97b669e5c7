"""The program `sirtaki`: pages of run files, and estimates. Ranks are started by sirtakirun, not by it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sirtaki import errors
from sirtaki._estimate import command as estimate
from sirtaki._telemetry import page, run_file


def _report(arguments: argparse.Namespace) -> None:
    text = page.html(run_file.read(arguments.run))
    if str(arguments.output) == "-":
        sys.stdout.write(text)
        return
    path = arguments.output or arguments.run.with_suffix(".html")
    if path.resolve() == arguments.run.resolve():
        raise errors.InvalidArgumentError(f"{path} is the run file itself; give the page another name with -o")
    path.write_text(text, encoding="utf-8")
    print(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="sirtaki", description="Reads run files, and predicts training steps.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    report = commands.add_parser("report", help="make an HTML page of a run file", description="Makes an HTML page.")
    report.add_argument("run", type=Path, metavar="RUN.json", help="file that the option report.file has written")
    report.add_argument("-o", dest="output", type=Path, help="the page; - is standard output (default: RUN.html)")
    report.set_defaults(run_command=_report)
    estimate.add_to(commands)
    arguments = parser.parse_args(argv)
    try:
        arguments.run_command(arguments)
    except (OSError, errors.SirtakiError) as error:
        print(f"sirtaki {arguments.command}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
