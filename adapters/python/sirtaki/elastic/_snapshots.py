"""Snapshots of a training on disk (elastic.snapshot_dir), for the case that all ranks with its state are lost.

elastic.run() makes one Snapshots. It writes commits in a thread, on one rank of each host, and before the first sync()
of a job it gives rank 0 the newest snapshot that any host can read. All ranks call sync() together and have the same
options, so its exchanges need no further agreement.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sirtaki import basics, errors
from sirtaki._telemetry.lines import say
from sirtaki.elastic._layout import require_same_layout
from sirtaki.elastic._snapshot_file import Header, NewerFormatError, UnreadableError, load
from sirtaki.elastic._snapshot_folder import BusyError, Folder, Found, Owner
from sirtaki.elastic.state import State

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
#: Bytes that hosts send each other at a time.
_CHUNK_BYTES = 16 << 20
#: Seconds until the end of elastic.run() says that it waits for a snapshot that is being written.
_TELL_AFTER = 10.0


@dataclass(frozen=True)
class Place:
    """Where a rank is."""

    rank: int
    local_rank: int
    host: str
    hostname: str


@dataclass(frozen=True)
class Survey:
    """The knowledge of a rank before a sync()."""

    #: Number of its last commit, or the highest one of its folder, whether that snapshot can be read or not.
    number: int
    #: There are snapshots in its folder.
    has_files: bool = False
    #: The training has ended with the newest one.
    ended: bool = False
    #: The newest one that can be read, where the job may go on from one.
    found: Found | None = None
    hostname: str = ""
    error: str = ""


def source_of(surveys: list[Survey], resume: str) -> int | None:
    """Returns the rank whose snapshot a job goes on from, rank 0 if it has that one; None: the job begins anew.

    Args:
        surveys: those of all ranks, none of which has the state of the job.
        resume: the option elastic.resume.

    Raises:
        InvalidArgumentError: the job must not begin.
    """
    for one in surveys:
        errors.require(not one.error, one.error)
    there = any(one.has_files for one in surveys)
    last = max(surveys, key=lambda one: (one.number, one.ended))
    end = ", with which a training has ended" if last.ended else ""
    errors.require(
        not there or resume != "stop",
        f"elastic.snapshot_dir has snapshots up to commit {last.number}{end}. To go on from there, "
        "add --elastic-resume yes; to begin anew and replace them, add --elastic-resume no; or choose another folder",
    )
    if resume not in ("yes", "auto"):
        return None
    newest = {one.found.header.training: one for one in surveys if one.found}
    errors.require(
        len(newest) <= 1,
        f"elastic.snapshot_dir has snapshots of {len(newest)} trainings: "
        f"{'; '.join(map(_described, newest.values()))}. Move those of others away, or begin anew with "
        "--elastic-resume no",
    )
    # The end of a training is newer than a commit with its number, which a host may have written as its last one.
    holders = [
        (one.found.header.number, one.found.header.ended, -rank) for rank, one in enumerate(surveys) if one.found
    ]
    errors.require(
        bool(holders) or (resume == "auto" and not there),
        f"elastic.resume is {resume}, and elastic.snapshot_dir has no snapshot that can be read on any host; look at "
        "the folder, or begin anew with --elastic-resume no",
    )
    return -max(holders)[2] if holders else None


def _described(survey: Survey) -> str:
    assert survey.found is not None
    header = survey.found.header
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(header.written))
    place = f"{survey.found.path} on {survey.hostname}"
    end = ", the end of its training" if header.ended else ""
    return f"commit {header.number}{end}, written {written} by a job of {header.ranks} ranks ({place})"


class Snapshots:
    """The snapshots of one training, on one rank.

    Args:
        state: the state of the training.
        folder: the folder of this host; None: no snapshots.
        every: seconds between two snapshots.
        resume: the option elastic.resume.
        place_of_rank: returns where this rank is.
        clock: returns seconds.
    """

    def __init__(
        self,
        state: State,
        folder: Folder | None,
        every: float = 0.0,
        resume: str = "stop",
        *,
        place_of_rank: Callable[[], Place] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._folder = folder
        self._every = every
        self._resume = resume
        self._place_of_rank = place_of_rank or _own_place
        self._clock = clock
        self._place = Place(0, 0, "", "")
        self._ranks = 1
        self._job = self._training = uuid.uuid4().hex
        self._has_state = False
        self._number = 0
        self._writes = False
        self._last = clock()
        self._thread: threading.Thread | None = None
        #: Kinds of trouble told since a snapshot was written: one takes too long, or has failed.
        self._told: set[str] = set()

    def sync(self) -> None:
        """Calls state.sync(), and gives it a snapshot before if the job goes on from one. Collective.

        Raises:
            InvalidArgumentError: the job must not begin; the same on all ranks. Or this rank alone must not join it.
            MismatchError: the ranks have states that differ in names, shapes or dtypes; the same on all ranks.
        """
        require_same_layout(self._state, self._has_state)
        if self._folder is not None:
            error = self._prepare(self._folder, self._state._objects())
            if error:
                raise errors.InvalidArgumentError(error)
        self._state.sync()
        self._has_state = True

    def committed(self) -> None:
        """Begins to write the commit that has just been made, if one is due. Returns at once."""
        self._number += 1
        if not self._writes or self._clock() - self._last < self._every:
            return
        if self._is_writing():
            self._warn(
                "slow",
                f"a snapshot is still being written to {self._target()}, so later commits are not; they may come "
                "too fast (elastic.snapshot_every)",
            )
            return
        self._last = self._clock()
        self._thread = None
        with self._trying(self._number):
            # No daemon, which would be stopped inside of torch at the end of the program.
            thread = threading.Thread(
                target=self._write, args=(self._state._hand_over(), self._number), name="srt-snapshot", daemon=False
            )
            thread.start()
            self._thread = thread

    @contextmanager
    def saving_at_the_end(self) -> Iterator[None]:
        """Returns a context in which the job may end for this rank; then the state saved last is written."""
        try:
            yield
        except errors.RanksChangedError:
            raise
        except (errors.HorovodInternalError, SystemExit):
            self._wait()
            if self._writes and self._has_state:
                self._number += 1
                with self._trying(self._number):
                    self._write(self._state._hand_over(), self._number)
            raise

    def end(self) -> None:
        """Writes the state as the end of the training: a job that goes on from there has nothing left to train."""
        if not self._writes:
            return
        self._wait()
        self._number += 1
        with self._trying(self._number):
            self._state.save()
            self._write(self._state._hand_over(), self._number, ended=True)

    def close(self) -> None:
        """Waits for the snapshot that is being written, and leaves the folder to others."""
        self._wait()
        if self._folder is not None:
            self._folder.release()

    def _is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _wait(self) -> None:
        """Waits for the snapshot that is being written, without a limit: the launcher has one, if there is any."""
        if self._thread is None:
            return
        self._thread.join(_TELL_AFTER)
        if self._is_writing():
            say(f"the end of the training waits for a snapshot that is being written to {self._target()}")
            self._thread.join()

    def _prepare(self, folder: Folder, objects: Any) -> str:
        """Agrees on the ranks that write and on a snapshot, and loads it. Collective.

        Returns why the job ends, or "".
        """
        self._place, self._ranks = self._place_of_rank(), basics.size()
        if self._place.local_rank != 0:
            folder.release()
        begins = not self._has_state
        first = self._survey(folder, begins, True) if self._place.rank == 0 else None
        # Rank 0 decides: if it does not have the state, no rank has made a step with it.
        about = self._job, self._training, begins
        self._job, self._training, begins = objects.broadcast_object(about, 0, "sirtaki.snapshots.job")
        # Behind the broadcast, so that hosts that share the folder of rank 0 see its lock.
        survey = first or self._survey(folder, begins, False)
        surveys = objects.allgather_object(survey, "sirtaki.snapshots.found")
        self._number = max(one.number for one in surveys)
        trouble = self._choose(folder, objects, surveys) if begins else ""
        if trouble:
            return self._end(objects, trouble)
        if survey.error:
            say(f"warning: {survey.error}; this host writes no snapshots")
        self._use_folder(folder)
        return ""

    def _choose(self, folder: Folder, objects: Any, surveys: list[Survey]) -> str:
        """Loads a snapshot if the job goes on from one. Returns why the job ends, or "". Collective."""
        try:
            source = source_of(surveys, self._resume)
        except errors.InvalidArgumentError as error:
            return str(error)
        if source is None:
            if self._resume == "auto" and self._place.rank == 0:
                say(f"begins anew, because {folder.path} has no snapshot")
            return ""
        self._state._forget_loaded()
        found = surveys[source].found
        assert found is not None
        self._training = found.header.training
        trouble = self._load(folder, objects, surveys[source], source)
        return str(objects.broadcast_object(trouble, 0, "sirtaki.snapshots.loaded"))

    def _use_folder(self, folder: Folder) -> None:
        """Says in the folder for which training it is, once all ranks know."""
        if self._writes:
            with self._trying(self._number):
                folder.use_for(self._training)

    def _end(self, objects: Any, why: str) -> str:
        """Ends the session in order, so that no rank takes another one for lost. Returns `why`. Collective."""
        with suppress(errors.HorovodInternalError):
            objects.allgather_object(None, "sirtaki.snapshots.end")
        basics.shutdown()
        return why

    def _survey(self, folder: Folder, begins: bool, is_first: bool) -> Survey:
        """Takes the folder, if this rank is the one of its host that writes, and looks for snapshots."""
        self._writes = False
        if self._place.local_rank != 0:
            return Survey(self._number)
        hostname = self._place.hostname
        try:
            if not folder.acquire(Owner(self._job, self._place.host, hostname, os.getpid()), is_first, say):
                return Survey(self._number)
            if not begins and not folder.is_of(self._training):
                folder.release()
                text = f"{folder.path} on {hostname} has snapshots of another training; move them away"
                return Survey(self._number, error=text)
            numbers = folder.numbers()
            looks = begins and self._resume in ("yes", "auto")
            found = folder.newest(say) if looks else None
            ended = begins and self._resume == "stop" and folder.has_ended()
        except (BusyError, NewerFormatError) as error:
            return Survey(self._number, error=str(error))
        except OSError as error:
            text = f"elastic.snapshot_dir ({folder.path} on {hostname}) cannot be used: {error}"
            return Survey(self._number, error=text)
        self._writes = True
        return Survey(max([self._number, *numbers[:1]]), bool(numbers), ended, found, hostname)

    def _load(self, folder: Folder, objects: Any, survey: Survey, source: int) -> str:
        """Loads the snapshot of rank `source` on rank 0. Returns an error or "". Collective if it is not rank 0."""
        assert survey.found is not None
        path = survey.found.path
        try:
            if source != 0:
                path = self._fetch(folder, objects, survey.found, source)
            if self._place.rank != 0:
                return ""
            state = load(Path(path))
        except (OSError, UnreadableError) as error:
            return f"{path} cannot be read: {error}; start again, or remove the file to go on from the one before"
        except errors.HorovodInternalError:
            raise
        except Exception as error:
            kind = type(error).__name__
            return f"{path} cannot be unpickled ({kind}: {error}); start the program that has written it"
        try:
            self._state._take_over(state)
        except Exception as error:
            return (
                f"{path} does not fit this training: {error}. Start the program that has written it, or begin anew "
                "with --elastic-resume no"
            )
        anew = "; to train anew, add --elastic-resume no or choose another folder"
        say(f"goes on from {_described(survey)}{anew if survey.found.header.ended else ''}")
        return ""

    def _fetch(self, folder: Folder, objects: Any, found: Found, source: int) -> str:
        """Copies a file of rank `source` to the folder of rank 0, and returns its path. Collective."""
        chunks = self._chunks(objects, found.path, source)
        try:
            if self._place.rank != 0:
                return found.path
            with folder.incoming(found.header) as incoming:
                for chunk in chunks:
                    incoming.file.write(chunk)
                incoming.keep()
                return str(incoming.target)
        finally:
            for _ in chunks:  # the others send all of it
                pass

    def _chunks(self, objects: Any, path: str, source: int) -> Iterator[bytes]:
        """Yields the bytes of a file of rank `source`. Collective."""
        with ExitStack() as opened:
            file: BinaryIO | None = None
            while True:
                chunk: bytes | str = b""
                if self._place.rank == source:
                    try:
                        file = file or opened.enter_context(open(path, "rb"))
                        chunk = file.read(_CHUNK_BYTES)
                    except OSError as error:
                        chunk = str(error)
                chunk = objects.broadcast_object(chunk, source, "sirtaki.snapshots.chunk")
                if isinstance(chunk, str):
                    raise OSError(chunk)
                if not chunk:
                    return
                yield chunk

    def _write(self, state: Any, number: int, ended: bool = False) -> None:
        assert self._folder is not None
        header = Header(number, time.time(), self._place.hostname, self._ranks, self._training, ended)
        with self._trying(number):
            if not self._folder.write(header, state, self._state._pickled_by):
                self._last = -math.inf  # the next commit is due: the one in its place may be older
            self._told.clear()

    @contextmanager
    def _trying(self, number: int) -> Iterator[None]:
        """Returns a context in which an error is a warning, for example of a full disk, or of a copy without room."""
        try:
            yield
        except Exception as error:
            kind = type(error).__name__
            text = f"commit {number} is not written to {self._target()} ({kind}: {error}); later commits try again"
            self._warn("failed", text)

    def _warn(self, kind: str, text: str) -> None:
        """Warns once of each kind of trouble, until a snapshot is written again."""
        if kind not in self._told:
            self._told.add(kind)
            say(f"warning: {text}")

    def _target(self) -> str:
        assert self._folder is not None
        return f"{self._folder.path} on {self._place.hostname}"


@contextmanager
def opened(state: Any, is_first_loop: bool) -> Iterator[Snapshots]:
    """Returns a context with the snapshots of a training, which are none without elastic.snapshot_dir.

    Args:
        state: the state of the training.
        is_first_loop: False in further trainings of a program, which have none: another start of the program would take
            them for those of the first.

    Raises:
        UnsupportedError: the state cannot be written.
    """
    path = basics.option("elastic.snapshot_dir")
    if path and not is_first_loop:
        say("warning: elastic.snapshot_dir is for the first elastic.run() of a program; this one writes no snapshots")
    if not path or not is_first_loop:
        yield Snapshots(state, None)
        return
    _require_written_whole(state)
    every = _seconds(basics.option("elastic.snapshot_every"))
    # The program may change its directory later.
    snapshots = Snapshots(state, Folder(os.path.abspath(path)), every, basics.option("elastic.resume"))
    state._snapshots = snapshots
    try:
        yield snapshots
    finally:
        state._snapshots = None
        snapshots.close()


def _require_written_whole(state: Any) -> None:
    """Raises UnsupportedError if a class that does not know snapshots saves more than they would have."""
    kind = type(state)
    writer, saver = (
        next((i for i, one in enumerate(kind.__mro__) if name in vars(one)), len(kind.__mro__))
        for name in ("_hand_over", "save")
    )
    if writer > saver or not isinstance(state, State):
        raise errors.UnsupportedError(
            f"elastic.snapshot_dir: a {kind.__name__} has a save() of its own, which snapshots cannot write; use "
            "ObjectState or a state of your framework, or save checkpoints"
        )
    state._check_hand_over()


def _own_place() -> Place:
    own = basics.members()[basics.rank()]
    return Place(basics.rank(), basics.local_rank(), str(own["host_id"]), str(own["hostname"]))


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)(\w+)", text)
    assert found is not None, text
    return int(found[1]) * _SECONDS[found[2]]
