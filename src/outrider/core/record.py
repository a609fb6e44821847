"""The run folder: one JSON result a stage, written once with the digests of its inputs; a killed run continues.

runs/NAME/
  run.json                     the resolved configuration
  events.jsonl                 what happened, when
  STAGE.json                   result of a stage, with its inputs
  STAGE/                       files of a stage; inputs.json says what they are made from
  superseded/STAGE-DIGEST/     files of a stage whose inputs have changed since; never deleted by us
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ValidationError

from outrider import __version__
from outrider.core.errors import InputError
from outrider.core.files import file_digest, read_json, value_digest, write_json
from outrider.core.results import Frozen, OutputFile

R = TypeVar("R", bound=BaseModel)


class StageRecord(Frozen):
    """How a stage's result was made; stands beside its fields under `record`."""

    stage: str
    inputs_digest: str
    inputs: dict[str, Any]
    wall_s: float
    version: str


class RunFolder:
    """One run on disk.

    Attributes:
        active: the run that this process holds, for an unexpected error to name.
    """

    active: ClassVar[Path | None] = None

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process; the operating system lets go of it however the process ends.

        Raises:
            InputError: another process works in this run folder.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                raise InputError(
                    f"another outrider works in {self.path}",
                    evidence=f"process {file.read().strip() or 'unknown'}",
                    fix="wait for it, or choose another run folder",
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            RunFolder.active = self.path
            yield

    def event(self, kind: str, **data: Any) -> None:
        """Append one line to events.jsonl."""
        line = json.dumps({"time_s": round(time.time(), 3), "event": kind, **data}, default=str)
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def stage(self, name: str, inputs: dict[str, Any], result_type: type[R], work: Callable[[Path], R]) -> tuple[R, bool]:
        """Run a stage, or take its result if it was made from the same inputs and its files are still there.

        Args:
            inputs: JSON-able: settings, and digests of everything read.
            work: does the stage in the folder it is given; it continues from what a killed try left there.

        Returns:
            The result, and whether it was taken rather than made.
        """
        digest = value_digest(inputs)
        kept = self._kept(name, digest, result_type)
        if kept is not None:
            self.event("stage unchanged", stage=name, inputs=digest)
            return kept, True
        folder = self._folder(name, digest, inputs)
        self.event("stage started", stage=name, inputs=digest)
        started = time.monotonic()
        result = work(folder)
        wall_s = time.monotonic() - started
        record = StageRecord(stage=name, inputs_digest=digest, inputs=inputs, wall_s=round(wall_s, 3), version=__version__)
        write_json(self.path / f"{name}.json", {**result.model_dump(mode="json"), "record": record.model_dump(mode="json")})
        self.event("stage finished", stage=name, inputs=digest, wall_s=round(wall_s, 3))
        return result, False

    def result(self, name: str, result_type: type[R]) -> R:
        """The result of a stage that has run.

        Raises:
            InputError: it has not, or the file is not one that this version writes.
        """
        return self._read(name, result_type)[0]

    def record(self, name: str) -> StageRecord:
        """How the result of a stage was made.

        Raises:
            InputError: as for `result`.
        """
        raw = read_json(self.path / f"{name}.json", f"the result of stage {name}")
        try:
            return StageRecord.model_validate(raw["record"])
        except (ValidationError, KeyError, TypeError) as error:
            raise self._foreign(name, error) from None

    def has(self, name: str) -> bool:
        """Whether a stage has a result."""
        return (self.path / f"{name}.json").exists()

    def _read(self, name: str, result_type: type[R]) -> tuple[R, StageRecord]:
        raw = read_json(self.path / f"{name}.json", f"the result of stage {name}")
        record = self.record(name)
        try:
            return result_type.model_validate({key: value for key, value in raw.items() if key != "record"}), record
        except ValidationError as error:
            raise self._foreign(name, error) from None

    def _foreign(self, name: str, error: Exception) -> InputError:
        return InputError(
            f"the result of stage {name} is not one that this version writes",
            evidence=f"{self.path / name}.json: {str(error).splitlines()[0]}",
            fix="run the stage again with this version, or use the version that wrote it",
        )

    def _kept(self, name: str, digest: str, result_type: type[R]) -> R | None:
        if not self.has(name) or self.record(name).inputs_digest != digest:
            return None
        result = self.result(name, result_type)
        return result if all(_is_whole(self.path / name / file.path, file) for file in _output_files(result)) else None

    def _folder(self, name: str, digest: str, inputs: dict[str, Any]) -> Path:
        """The stage's folder: kept if it was made from the same inputs; else it and its result are moved aside."""
        folder = self.path / name
        record = folder / "inputs.json"
        if record.exists():
            old = str(read_json(record, f"the inputs of stage {name}").get("digest"))
            if old != digest:
                self._move_aside(folder, f"{name}-{old[:12]}")
        if self.has(name) and self.record(name).inputs_digest != digest:
            self._move_aside(self.path / f"{name}.json", f"{name}-{self.record(name).inputs_digest[:12]}.json")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(record, {"digest": digest, "inputs": inputs})
        return folder

    def _move_aside(self, path: Path, name: str) -> None:
        aside = self.path / "superseded" / name
        aside.parent.mkdir(exist_ok=True)
        while aside.exists():
            aside = aside.with_name("again-" + aside.name)
        path.rename(aside)


def output_file(path: Path, relative_to: Path) -> OutputFile:
    """Describe a finished file by path, size and digest."""
    return OutputFile(path=os.path.relpath(path, relative_to), num_bytes=path.stat().st_size, sha256=file_digest(path))


def _output_files(value: Any) -> Iterator[OutputFile]:
    if isinstance(value, OutputFile):
        yield value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _output_files(getattr(value, name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from _output_files(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _output_files(item)


def _is_whole(path: Path, file: OutputFile) -> bool:
    return path.is_file() and path.stat().st_size == file.num_bytes
