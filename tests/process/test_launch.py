"""Processes, output and exit status of sirtakirun when nothing is killed."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launch_support import PYTHON, launch, launcher_path

RANK_AND_SIZE = "echo $SIRTAKI_JOB_RANK of $SIRTAKI_JOB_SIZE"


def test_every_rank_runs_and_its_lines_carry_its_number() -> None:
    done = launch("-np", "3", "sh", "-c", RANK_AND_SIZE + "; echo problem >&2")
    assert done.code == 0
    assert sorted(done.out.splitlines()) == ["[0] 0 of 3", "[1] 1 of 3", "[2] 2 of 3"]
    assert sorted(done.err.splitlines()) == ["[0!] problem", "[1!] problem", "[2!] problem"]


def test_np_wins_over_slots() -> None:
    done = launch("-np", "2", "-H", "localhost:4", "sh", "-c", RANK_AND_SIZE)
    assert sorted(done.out.splitlines()) == ["[0] 0 of 2", "[1] 1 of 2"]


def test_without_np_every_slot_gets_a_rank() -> None:
    done = launch("-H", "localhost:2,127.0.0.1:1", "sh", "-c", RANK_AND_SIZE)
    assert sorted(done.out.splitlines()) == ["[0] 0 of 3", "[1] 1 of 3", "[2] 2 of 3"]


def test_hostfile_with_comments(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# here\n\nlocalhost slots=2 # two\n")
    done = launch("--hostfile", str(hosts), "sh", "-c", RANK_AND_SIZE)
    assert sorted(done.out.splitlines()) == ["[0] 0 of 2", "[1] 1 of 2"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-np", "5", "-H", "localhost:4", "true"), "needs 5 slots, but the hosts offer 4"),
        (("-np", "0", "true"), "at least one rank"),
        (("true",), "the number of ranks is not given"),
        (("-np", "2"), "no command"),
        (("-np", "2", "--compresion", "fp16", "true"), "did you mean --compression"),
        (("-np", "2", "--compression", "zip", "true"), "fp16"),
        (("-np", "2", "--hostfile", "/no/such/file", "true"), "/no/such/file"),
        (("-np", "2", "--config-file", "/no/such.toml", "true"), "/no/such.toml"),
        (("-np", "2", "--port-range", "9-3", "true"), "port"),
        (("-np", "2", "-x", "NOT_SET_ANYWHERE", "true"), "NOT_SET_ANYWHERE"),
        (("-H", "fd00::2:4", "true"), "brackets"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_clear_line(arguments: tuple[str, ...], words: str) -> None:
    done = launch(*arguments)
    assert done.code == 2
    assert words in done.err
    assert len(done.err.splitlines()) == 1, done.err


def test_bad_toml_names_file_and_line(tmp_path: Path) -> None:
    config = tmp_path / "sirtaki.toml"
    config.write_text("[net]\nbackend = \n")
    done = launch("-np", "1", "--config-file", str(config), "true")
    assert done.code == 2
    assert "sirtaki.toml:2" in done.err


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (("no-such-program",), 127, "command not found: 'no-such-program'"),
        (("/no/such/program",), 127, "command not found"),
        (("./plain.py",), 126, "not executable"),
        (("plain.py",), 127, "python plain.py"),
        (("./odd.py",), 127, "interpreter"),
    ],
)
def test_a_command_that_cannot_run_is_one_clear_line(
    command: tuple[str, ...], code: int, words: str, tmp_path: Path
) -> None:
    (tmp_path / "plain.py").write_text("print(1)\n")
    (tmp_path / "odd.py").write_text("#!/no/such/python\n")
    (tmp_path / "odd.py").chmod(0o755)
    done = launch("-np", "3", *command, cwd=tmp_path)
    assert done.code == code
    assert words in done.err
    assert len(done.err.splitlines()) == 1, done.err


def test_a_busy_port_is_one_clear_line() -> None:
    import socket

    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        done = launch("-np", "1", "--port-range", str(port), "true")
    assert done.code == 1
    assert str(port) in done.err
    assert len(done.err.splitlines()) == 1, done.err


def test_exit_code_and_last_lines_are_those_of_the_rank_that_failed() -> None:
    script = "if [ $SIRTAKI_JOB_RANK = 1 ]; then seq 1 30 >&2; exit 7; fi; exit 0"
    done = launch("-np", "3", "sh", "-c", script)
    assert done.code == 7
    assert "rank 1 on localhost: exit code 7" in done.err
    assert "  | 30" in done.err
    assert "  | 11" in done.err
    assert "  | 10" not in done.err


def test_secret_comes_through_a_descriptor_and_stays_off_every_command_line() -> None:
    script = (
        "import os, glob\n"
        "secret = os.read(int(os.environ['SIRTAKI_JOB_SECRET_FD']), 1000).decode().strip()\n"
        "texts = []\n"
        "for path in glob.glob('/proc/[0-9]*/cmdline'):\n"
        "    try: texts.append(open(path, 'rb').read().decode(errors='replace'))\n"
        "    except OSError: pass\n"
        "print(len(secret), any(secret in t for t in texts), secret in str(os.environ),\n"
        "      sum(os.environ['LAUNCH_TEST_VALUE'] in t for t in texts))\n"
    )
    done = launch("-np", "2", PYTHON, "-c", script, env={"LAUNCH_TEST_VALUE": "a" + "b" * 20 + "c"})
    assert sorted(done.out.splitlines()) == ["[0] 64 False False 0", "[1] 64 False False 0"]


def test_a_rank_has_only_its_streams_and_the_secret_open() -> None:
    reading, writing = os.pipe()
    # Descriptor 3 belongs to the listing itself.
    script = (
        "import os; known = {0, 1, 2, 3, int(os.environ['SIRTAKI_JOB_SECRET_FD'])}\n"
        "print({int(name) for name in os.listdir('/proc/self/fd')} - known)"
    )
    try:
        done = launch("-np", "1", PYTHON, "-c", script, pass_fds=(reading, writing))
    finally:
        os.close(reading)
        os.close(writing)
    assert done.out == "[0] set()\n"


def test_variables_reach_the_ranks() -> None:
    done = launch("-np", "1", "-x", "GREETING=hello world", "sh", "-c", "echo $GREETING $PYTHONUNBUFFERED")
    assert done.out == "[0] hello world 1\n"


def test_options_reach_the_ranks_with_their_origin(tmp_path: Path) -> None:
    config = tmp_path / "sirtaki.toml"
    config.write_text('[net]\nbackend = "gloo"\n')
    script = 'echo "$SIRTAKI_CLI_OPTIONS"; echo "$SIRTAKI_CONFIG_TEXT"; echo "$SIRTAKI_CONFIG"'
    done = launch("-np", "1", "--compression", "fp16", "--config-file", str(config), "sh", "-c", script)
    assert 'compression.codec = "fp16"' in done.out
    assert 'backend = "gloo"' in done.out
    assert str(config) in done.out


def test_omp_threads_share_the_cores_unless_given() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}

    def threads(ranks: int) -> int:
        command = ("env", "-u", "X", "sh", "-c", "echo $OMP_NUM_THREADS")
        done = launch("-np", str(ranks), *command, env={**environment, "X": "1"})
        (shown,) = {line.split()[1] for line in done.out.splitlines()}
        return int(shown)

    cores = threads(1)
    assert 1 <= cores <= len(os.sched_getaffinity(0)), "a quota may allow less"
    for ranks in (2, 3):
        assert threads(ranks) == max(1, cores // ranks)
    assert launch("-np", "2", "-x", "OMP_NUM_THREADS=5", "sh", "-c", "echo $OMP_NUM_THREADS").out.count("] 5\n") == 2


def test_a_rank_knows_its_place_on_its_host_before_any_import() -> None:
    script = "echo $SIRTAKI_JOB_LOCAL_RANK of $SIRTAKI_JOB_LOCAL_SIZE $HOROVOD_RANK"
    done = launch("-np", "2", "sh", "-c", script, env={"HOROVOD_RANK": "7", "SIRTAKI_JOB_LOCAL_RANK": "7"})
    assert sorted(done.out.splitlines()) == ["[0] 0 of 2", "[1] 1 of 2"]


def test_a_rank_knows_its_place_under_the_names_of_torchrun() -> None:
    script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR:$MASTER_PORT"
    done = launch("-np", "2", "sh", "-c", f"test $MASTER_ADDR:$MASTER_PORT = $SIRTAKI_JOB_RENDEZVOUS && {script}")
    assert re.fullmatch(
        r"\[0\] 0 2 0 2 0 127\S+:\d+\n\[1\] 1 2 1 2 0 127\S+:\d+\n", "".join(sorted(done.out.splitlines(True)))
    )
    outer = {"RANK": "7", "WORLD_SIZE": "9", "MASTER_ADDR": "outer"}
    done = launch("-np", "2", "-x", "MASTER_ADDR=mine", "sh", "-c", "echo $RANK $WORLD_SIZE $MASTER_ADDR", env=outer)
    assert sorted(done.out.splitlines()) == ["[0] 0 2 mine", "[1] 1 2 mine"]


def test_horovods_variables_are_there_under_its_name() -> None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
    script = "echo " + " ".join(f"$HOROVOD_{name}" for name in names)
    done = launch("-np", "2", "--horovod", "sh", "-c", script)
    assert sorted(done.out.splitlines()) == ["[0] 0 2 0 2 0 1 localhost", "[1] 1 2 1 2 0 1 localhost"], done.err


def test_the_secret_has_a_way_past_wrappers_that_close_descriptors() -> None:
    wrapper = "import subprocess, sys\nsys.exit(subprocess.run(sys.argv[1:], close_fds=True).returncode)\n"
    script = (
        "import os\n"
        "try: os.fstat(int(os.environ['SIRTAKI_JOB_SECRET_FD'])); print('open')\n"
        "except OSError: print(len(open(os.environ['SIRTAKI_JOB_SECRET_FILE']).read()))\n"
    )
    done = launch("-np", "2", PYTHON, "-c", wrapper, PYTHON, "-c", script)
    assert sorted(done.out.splitlines()) == ["[0] 64", "[1] 64"], done.err


def test_a_limit_on_open_files_is_named_before_anything_starts() -> None:
    done = launch("-c", 'ulimit -n 64; exec "$0" -np 60 true', launcher_path(), program="/bin/sh")
    assert done.code == 1
    assert "limit on open files here is 64" in done.err
    assert "ulimit -n" in done.err


def test_ranks_keep_the_limit_on_open_files_that_the_launcher_was_given() -> None:
    done = launch("-c", 'ulimit -Sn 200; exec "$0" -np 1 sh -c "ulimit -Sn"', launcher_path(), program="/bin/sh")
    assert done.out == "[0] 200\n"


@pytest.mark.parametrize("ranks", [1, 2, 11])
def test_files_per_rank(ranks: int, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    done = launch(
        "-np", str(ranks), "--output-dir", str(folder), "sh", "-c", "echo out $SIRTAKI_JOB_RANK; echo err >&2"
    )
    assert done.code == 0
    width = len(str(ranks - 1))
    for rank in range(ranks):
        assert (folder / f"rank.{rank:0{width}}/stdout").read_text() == f"out {rank}\n"
        assert (folder / f"rank.{rank:0{width}}/stderr").read_text() == "err\n"
        assert f"[{rank:{width}}] out {rank}\n" in done.out


def test_large_output_arrives_whole(tmp_path: Path) -> None:
    lines = 200_000
    done = launch("-np", "2", "--output-dir", str(tmp_path), "seq", "1", str(lines), timeout=60)
    assert done.code == 0
    for rank in range(2):
        assert (tmp_path / f"rank.{rank}/stdout").read_text().split() == [str(i) for i in range(1, lines + 1)]
        shown = re.findall(rf"^\[{rank}\] (\d+)$", done.out, re.MULTILINE)
        assert len(shown) == lines


def test_output_that_is_no_text_is_kept() -> None:
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 100)"
    done = launch("-np", "1", "--no-tag-output", PYTHON, "-c", script)
    assert done.out.encode(errors="surrogateescape") == bytes(range(256)) * 100


def test_a_reader_who_pauses_slows_the_ranks_and_not_the_watch(tmp_path: Path) -> None:
    from launch_support import running, wait_until

    script = (
        f"[ $SIRTAKI_JOB_RANK = 1 ] && {{ read x < {tmp_path}/go; exit 9; }}; while :; do echo yyyyyyyyyyyyyyy; done"
    )
    os.mkfifo(tmp_path / "go")
    with running("-np", "2", "sh", "-c", script) as run:
        wait_until(lambda: len(run.ranks()) == 2, 10, "both ranks run")
        # Nothing reads the output of the launcher here, so its writes block; it must see the end of rank 1 all the
        # same.
        with (tmp_path / "go").open("w") as go:
            go.write("x\n")
        wait_until(lambda: not run.ranks(), 5, "the failure ends the ranks")
        assert run.finish().code == 9


def test_what_a_rank_leaves_behind_is_ended_and_its_last_words_kept() -> None:
    done = launch("-np", "1", "sh", "-c", "(sleep 0.3; echo later; exec sleep 1000) & echo first")
    assert done.code == 0
    assert done.out.splitlines() == ["[0] first", "[0] later"]
    assert done.seconds < 5


def test_a_daemon_of_a_rank_is_ended_with_the_job() -> None:
    done = launch("-np", "1", "setsid", "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo started")
    assert done.code == 0
    assert done.out == "[0] started\n"
    assert done.seconds < 5


def test_check_prints_hosts_options_and_their_origin() -> None:
    done = launch("-H", "localhost:2", "--compression", "bf16", "--check", env={"SIRTAKI_LOG_LEVEL": "debug"})
    assert done.code == 0, done.err
    assert "ranks 0-1" in done.out
    assert "OMP_NUM_THREADS" in done.out
    assert "2 ranks on 1 host: shared memory\n" in done.out
    assert re.search(r"compression.codec +bf16 +\(command line\)", done.out)
    assert re.search(r"log.level +debug +\(SIRTAKI_LOG_LEVEL\)", done.out)
    assert "schedule.replan" not in done.out
    assert "  all others have their defaults; --verbose lists them\nAll is well." in done.out


def test_check_lists_all_options_if_asked() -> None:
    assert "  all have their defaults; --verbose lists them\n" in launch("-np", "2", "--check").out
    assert re.search(r"schedule.replan +true +\(default\)", launch("-np", "2", "-v", "--check").out)


def test_version_and_help() -> None:
    assert re.match(r"sirtakirun \d+\.\d+", launch("--version").out)
    assert "Examples:" in launch("--help").out


def test_verbose_says_how_it_ended() -> None:
    done = launch("-np", "2", "-v", "true")
    assert "all 2 ranks ended with exit code 0" in done.err
    assert launch("-np", "2", "true").err == ""
