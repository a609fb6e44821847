"""An installed engine is asked itself, in a process of its own: under its interpreter, or inside its container image.

The questions are the files of `inside/`; what is asked arrives as their one argument, the text on their standard input.
"""

import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from outrider.core.errors import InputError, from_os_error
from outrider.core.files import read_json
from outrider.core.guard import kill_session
from outrider.engines.engine import Engine
from outrider.engines.environment import Environment
from outrider.engines.environments import home

_INSIDE: Final = Path(__file__).parents[1] / "inside"
CONTAINERS: Final = ("docker", "podman")
_SOURCE_TIMEOUT_S = 300.0
_START_TIMEOUT_S = 300.0
_PAIR_TIMEOUT_S = 30.0
_LONGEST_CONFIG_BYTES = 2**20
_TAIL_LINES = 5
# exit code of inside/engine_source.py
_NONE_IS_THERE: Final = 3
# a question must neither reach for the network nor tell anybody
_QUIET: Final = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONSAFEPATH": "1"}


@dataclass(frozen=True)
class Pair:
    """One target and one drafter, as an engine is asked about them.

    Attributes:
        target: its folder; config.json is enough.
        drafter: its folder, or the config of one that is planned.
        method: of speculation, in the engine's words; None if the arguments name it, or the engine is to guess.
        num_speculative_tokens: K; None if the arguments name it.
        arguments: the engine's own, of the launch that is meant.
    """

    target: Path
    drafter: Path | Mapping[str, Any]
    method: str | None
    num_speculative_tokens: int | None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineVerdict:
    """What an engine says of a pair.

    Attributes:
        stage: where it ended: import, arguments, target, speculation, configuration, device, interface, process; empty if
            it takes the pair.
        error: in the engine's own words.
        architecture: of the target, as the engine resolves it; empty if it did not come so far.
        method: of speculation, as the engine takes it, likewise: it guesses where none is named.
        runner: the model runner that the launch would take, likewise.
        supports_eagle3: whether the target's class hands out aux states; None if the engine did not come so far.
    """

    verdict: Literal["accepted", "refused", "could_not_tell"]
    stage: str
    error: str
    architecture: str = ""
    method: str = ""
    runner: str = ""
    supports_eagle3: bool | None = None
    version: str = ""


@dataclass(frozen=True)
class _Answer:
    """What a question was answered with; exit code None: it took too long."""

    exit_code: int | None
    out: bytes
    log: str


def ask_verdict(
    environment: Environment,
    target: Path,
    drafter: Path | Mapping[str, Any],
    method: str | None,
    num_speculative_tokens: int | None,
    arguments: Sequence[str],
) -> EngineVerdict:
    """What an installed engine makes of one pair; see `Pair`.

    Raises:
        InputError: a config that cannot be read, or an engine that cannot be run.
    """
    return ask_verdicts(environment, [Pair(target, drafter, method, num_speculative_tokens, tuple(arguments))])[0]


def ask_verdicts(environment: Environment, pairs: Sequence[Pair]) -> list[EngineVerdict]:
    """What an installed engine makes of pairs, in their order; it is imported once, no weights are read.

    Raises:
        InputError: a config that cannot be read, or an engine that cannot be run.
    """
    with tempfile.TemporaryDirectory(prefix="outrider-ask-") as name:
        place = Path(name)
        try:
            asked = [_staged(pair, place / str(number)) for number, pair in enumerate(pairs)]
        except OSError as error:
            raise from_os_error(error) from None
        request = json.dumps({"engine": environment.engine, "pairs": asked})
        answer = _ask(environment, "engine_verdict.py", request, place, _START_TIMEOUT_S + _PAIR_TIMEOUT_S * len(pairs))
    verdicts = _read(answer.out)[: len(pairs)]
    missing = EngineVerdict("could_not_tell", "process", _why_silent(answer))
    return [_with_real_paths(v, p, a) for v, p, a in zip(verdicts, pairs, asked, strict=False)] + [missing] * (len(pairs) - len(verdicts))


def image_environment(engine: Engine, image: str) -> Environment:
    """An engine inside a container image; its source is copied out of it once, nothing of it is run.

    Raises:
        InputError: no container program, no such image on this machine, or one without the engine.
    """
    container, identity = found_image(image)
    folder = home() / "images" / sha256(f"{engine.id} {identity}".encode()).hexdigest()[:16]
    if not folder.is_dir():
        _copy_source(container, engine, image, folder)
    told = read_json(folder / "engine.json", "the copy of an engine's source")
    return Environment(
        name=image,
        engine=engine.id,
        distribution=told["distribution"],
        version=told["version"],
        python=Path("python3"),
        packages=folder,
        ours=False,
        image=image,
    )


def found_image(image: str) -> tuple[str, str]:
    """The program that has an image, and the image's digest, so that a new image under an old name is read anew.

    Raises:
        InputError: none has it.
    """
    programs = [path for name in CONTAINERS if (path := shutil.which(name))]
    if not programs:
        fix = "name the engine's interpreter, --engine-python PATH, or its version, --engine NAME==VERSION"
        raise InputError("an image can only be asked with docker or podman", evidence="neither is on PATH", fix=fix)
    refused: list[str] = []
    for program in programs:
        command = [program, "image", "inspect", "--format", "{{.Id}}", image]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SOURCE_TIMEOUT_S, check=True)
            return program, done.stdout.strip()
        except (OSError, subprocess.SubprocessError) as error:
            said = str(getattr(error, "stderr", None) or error).strip().splitlines()
            refused.append(f"{Path(program).name}: {said[-1] if said else repr(error)}")
    raise InputError(
        f"no image {image!r} can be asked",
        evidence="; ".join(refused),
        fix=f"`{Path(programs[-1]).name} pull {image}` if it is only missing here; nothing is downloaded by a check",
    )


def _copy_source(container: str, engine: Engine, image: str, folder: Path) -> None:
    request = json.dumps({distribution.name: distribution.imports for distribution in engine.distributions})
    command = [container, "run", "--rm", "-i", "--pull", "never", "--network", "none", "--entrypoint", "python3", image, "-", request]
    answer = _run(command, _INSIDE / "engine_source.py", None, _SOURCE_TIMEOUT_S)
    if answer.exit_code == _NONE_IS_THERE:
        raise InputError(f"the image {image!r} has no {engine.id}", evidence=answer.log, fix="name an image that holds it")
    if answer.exit_code != 0:
        what = f"the image {image!r} cannot be asked by its python3"
        raise InputError(what, evidence=_why_silent(answer), fix=f"see that `{Path(container).name} run` works with it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        try:
            with tarfile.open(fileobj=BytesIO(answer.out)) as tar:
                tar.extractall(name, filter="data")
            Path(name, "engine.json").stat()
        except (tarfile.TarError, OSError) as error:
            raise InputError(f"the source in the image {image!r} cannot be read", evidence=f"{error}; {answer.log}") from None
        shutil.copytree(name, folder, dirs_exist_ok=True)


def _staged(pair: Pair, place: Path) -> dict[str, Any]:
    """A copy of what an engine reads before it loads: small, without links, where it may lie beside no weights."""
    target, drafter = place / "target" / pair.target.name, place / "drafter"
    _copy_configs(pair.target, target)
    if isinstance(pair.drafter, Path):
        drafter = drafter / pair.drafter.absolute().relative_to("/")  # an engine may guess the method by the path
        _copy_configs(pair.drafter, drafter)
    else:
        drafter.mkdir(parents=True)
        (drafter / "config.json").write_text(json.dumps(pair.drafter), encoding="utf-8")
    paths = {"target": str(target), "drafter": str(drafter)}
    return paths | {"method": pair.method, "k": pair.num_speculative_tokens, "arguments": list(pair.arguments)}


def _copy_configs(folder: Path, copy: Path) -> None:
    copy.mkdir(parents=True)
    for path in [*folder.glob("*.json"), *folder.glob("*.py")]:
        if path.is_file() and (path.name == "config.json" or path.stat().st_size <= _LONGEST_CONFIG_BYTES):
            shutil.copyfile(path, copy / path.name)


def _ask(environment: Environment, script: str, request: str, place: Path, timeout_s: float) -> _Answer:
    """Put a question; `place` is the one folder that is there for it."""
    if not environment.image:
        return _run([str(environment.python.absolute()), "-", request], _INSIDE / script, place, timeout_s)
    container, name = found_image(environment.image)[0], f"outrider-{uuid.uuid4().hex[:12]}"
    command = [container, "run", "--rm", "-i", "--name", name, "--pull", "never", "--network", "none"]
    command += ["--volume", f"{place}:{place}:ro,z", *(f"--env={key}={value}" for key, value in _QUIET.items())]
    command += ["--entrypoint", str(environment.python), environment.image, "-", request]
    answer = _run(command, _INSIDE / script, None, timeout_s)
    if answer.exit_code is None:  # the program is gone, the container is not
        subprocess.run([container, "rm", "--force", name], capture_output=True, check=False)
    return answer


def _run(command: list[str], script: Path, folder: Path | None, timeout_s: float) -> _Answer:
    """Run a command with a script on its standard input; whatever it has started ends with it.

    Raises:
        InputError: it cannot be run.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=_QUIET | os.environ,
            start_new_session=True,
        )
    except OSError as error:
        raise InputError(
            f"{command[0]} cannot be run", evidence=str(error), fix="name the interpreter of the engine's environment"
        ) from None
    try:
        out, log = process.communicate(script.read_bytes(), timeout_s)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        kill_session(process.pid)  # first: they hold the other end of what is read
        out, log = process.communicate()
        code = None
    finally:
        process.kill()
        kill_session(process.pid)
    lines = log.decode(errors="replace").strip().splitlines()
    return _Answer(code, out, " | ".join(lines[-_TAIL_LINES:]))


def _read(out: bytes) -> list[EngineVerdict]:
    """The verdicts before the first line that is none."""
    adapter, verdicts = TypeAdapter(EngineVerdict), list[EngineVerdict]()
    for line in out.splitlines():
        try:
            verdicts.append(adapter.validate_json(line))
        except ValidationError:
            break
    return verdicts


def _why_silent(answer: _Answer) -> str:
    ended = "it took too long and was ended" if answer.exit_code is None else f"it ended with exit code {answer.exit_code}"
    return f"{ended}: {answer.log}" if answer.log else ended


def _with_real_paths(verdict: EngineVerdict, pair: Pair, asked: Mapping[str, Any]) -> EngineVerdict:
    """The engine speaks of the copies."""
    real = {"target": str(pair.target), "drafter": str(pair.drafter) if isinstance(pair.drafter, Path) else "the planned drafter"}
    error = verdict.error
    for part, path in real.items():
        error = error.replace(asked[part], path)
    return EngineVerdict(**(vars(verdict) | {"error": error}))
