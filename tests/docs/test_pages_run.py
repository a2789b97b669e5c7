"""The whole script of docs/getting_started.md trains as the page starts it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from sirtaki.launch import launcher_path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = re.compile(
    r"### A whole script\n.*?```python\n(.*?)```\n\n```\nsirtakirun (.*?) python train\.py\n```", re.DOTALL
)


def test_the_whole_script_trains(tmp_path: Path) -> None:
    found = SCRIPT.search((ROOT / "docs/getting_started.md").read_text())
    assert found is not None
    (tmp_path / "train.py").write_text(found[1])
    command = [launcher_path(), *shlex.split(found[2]), "python", "train.py"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command,
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PATH": path},
    )
    losses = [float(loss) for loss in re.findall(r"epoch \d: loss ([\d.]+)", done.stdout)]
    assert len(losses) == 3, done.stdout + done.stderr
    assert losses[2] < losses[0] / 2
    assert (tmp_path / "model.pt").exists()
