"""The list of target types that some versions of vLLM have, lifted: in memory, by a plug-in; no installed file is edited.

For launches of ours the plug-in's folder is put on PYTHONPATH. For launches by others it is put among the engine's
packages, as a distribution of its own, and taken out again.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import outrider.inside
from outrider.core.errors import EngineFailed, InputError
from outrider.core.files import write_atomically
from outrider.engines.engine import Engine
from outrider.engines.environment import Environment
from outrider.engines.facts import EngineFacts, Listed

VARIABLE: Final = "OUTRIDER_LIFT_TARGET_TYPES"
PLUGIN: Final = "outrider_gate"
_INSIDE: Final = Path(outrider.inside.__file__).parent
_FOLDER: Final = _INSIDE / "vllm_gate"
_INFO: Final = f"{PLUGIN}-1.dist-info"
_TYPES: Final = f"{PLUGIN}/target_types.txt"
# while it is not there, the engine sees no plug-in
_ENTRY_POINTS: Final = f"{_INFO}/entry_points.txt"
_RECORD: Final = f"{_INFO}/RECORD"
_ALLOWED: Final = "VLLM_PLUGINS"
_ASK_TIMEOUT_S: Final = 600.0
_WORD: Final = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Answer:
    """What an engine's own check says of a type.

    Attributes:
        before: its refusal without plug-ins; None if it takes the type.
        after: the same with the plug-ins that it finds.
    """

    before: str | None
    after: str | None


def lifted_types(environment: Environment) -> tuple[str, ...]:
    """The types that the plug-in among an engine's packages lifts; none without it."""
    try:
        text = (environment.packages / _TYPES).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(text.split()) if (environment.packages / _ENTRY_POINTS).exists() else ()


def with_lifted(facts: EngineFacts, environment: Environment, told: Iterable[str] = ()) -> EngineFacts:
    """The facts of an engine as it will be: its list with what is lifted among its packages, and for this launch.

    Args:
        told: lifted for a launch of ours.
    """
    types = tuple(sorted({*lifted_types(environment), *told}))
    if not types or not facts.target_types:
        return facts
    listed = facts.target_types
    lifted = Listed((*listed.names, *types), f"{listed.evidence}; lifted by {PLUGIN}: {', '.join(types)}", listed.methods)
    return replace(facts, target_types=lifted)


def is_refused(facts: EngineFacts, model_type: str) -> bool:
    """Whether the list of a version refuses a type.

    Raises:
        InputError: the list could not be read.
    """
    listed = facts.target_types
    if listed is None:
        return False
    if not listed.names:
        raise InputError(f"the list of target types of {facts.engine} {facts.version} could not be read", evidence=listed.evidence)
    return not any(name in model_type for name in listed.names)


def launch_env(types: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """What the environment of a launch must say so that types are lifted in it; nothing without types.

    Raises:
        InputError: the environment forbids the plug-in, or a type that is no word.
    """
    told = _words(types)
    if not told:
        return {}
    require_allowed(environ)
    path = [str(_FOLDER), *filter(None, [environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path), VARIABLE: ",".join(told)}


def require_list(engine: Engine, environment: Environment, types: tuple[str, ...]) -> None:
    """Refuse to lift what is not there.

    Raises:
        InputError: types are told, and this version has no list.
    """
    if types and engine.facts(environment).target_types is None:
        raise InputError(
            f"{engine.id} {environment.version} has no list of target types to lift",
            evidence=str(environment.packages),
            effect="the setting would do nothing",
            fix="leave out lift_target_types, or --lift-gate",
        )


def require_allowed(environ: Mapping[str, str]) -> None:
    """Refuse to work where the engine is told to load other plug-ins only.

    Raises:
        InputError: VLLM_PLUGINS is set and does not name ours.
    """
    allowed = environ.get(_ALLOWED)
    if allowed is not None and PLUGIN not in allowed.split(","):
        raise InputError(
            f"{_ALLOWED} keeps the plug-in out",
            evidence=f"{_ALLOWED}={allowed!r}",
            effect="the engine loads the plug-ins that it names and no others, and refuses the type as before",
            fix=f"{_ALLOWED}={','.join(filter(None, [allowed, PLUGIN]))}, or unset it",
        )


def lift(environment: Environment, types: Iterable[str], method: str) -> dict[str, Answer]:
    """Put the plug-in among an engine's packages, or tell the one that is there of further types; the engine is asked then.

    Returns:
        What the engine says of each type.

    Raises:
        InputError: a type that is no word, the environment forbids the plug-in, or the packages cannot be written to.
        EngineFailed: the engine refuses a type still, or could not be asked. All is as it was then, in either case.
    """
    told, before = _words(types), lifted_types(environment)
    require_allowed(os.environ)
    try:
        _put_in(environment.packages, (*before, *told))
        answers = ask(environment, told, method)
        refused = {model_type: answer.after for model_type, answer in answers.items() if answer.after}
        if refused:
            names = ", ".join(refused)
            raise EngineFailed(f"{environment.engine} {environment.version} still refuses {names}", evidence=next(iter(refused.values())))
    except BaseException as error:
        with suppress(OSError):
            if before:
                _put_in(environment.packages, before)
            else:
                _take_out(environment.packages)
        if isinstance(error, OSError):
            fix = "run it as who owns them, or let Outrider start the engine: `outrider serve --lift-gate TYPE` writes nothing"
            raise _not_writable(environment, error, "nothing was changed", fix) from None
        raise
    return answers


def restore(environment: Environment) -> tuple[str, ...] | None:
    """Take the plug-in out again, with all that Python has compiled of it.

    Returns:
        The types that were lifted; None if it was not there.

    Raises:
        InputError: a file of it cannot be deleted.
    """
    types, packages = lifted_types(environment), environment.packages
    if not any((packages / name).exists() for name in (PLUGIN, _INFO)):
        return None
    try:
        _take_out(packages)
    except OSError as error:
        fix = "run it as who owns them, then see `outrider engine gate status`"
        raise _not_writable(environment, error, "the list may still be lifted", fix) from None
    return types


def ask(environment: Environment, types: Iterable[str], method: str) -> dict[str, Answer]:
    """Let the engine's own check speak of types, in a process of its interpreter: some seconds.

    Raises:
        EngineFailed: it could not be asked.
    """
    command = [str(environment.python), str(_INSIDE / "ask_vllm_gate.py"), method, *types]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=True, env={**os.environ, "PYTHONSAFEPATH": "1"}
        )
        return {model_type: Answer(**answer) for model_type, answer in json.loads(done.stdout).items()}
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise EngineFailed(
            f"{environment.engine} {environment.version} could not be asked",
            evidence=said[-1] if said else repr(error),
            fix=f"see what `{' '.join(command)}` says",
        ) from None


def _words(types: Iterable[str]) -> tuple[str, ...]:
    told = tuple(sorted({*types}))
    for name in told:
        # an empty name is part of every type, and would lift the list for all
        if not _WORD.fullmatch(name):
            raise InputError(f"{name!r} is no type of a target", fix="as config.json names it in model_type, e.g. kimi_k2")
    return told


def _put_in(packages: Path, types: Iterable[str]) -> None:
    for name, data in _contents(sorted({*types})).items():
        write_atomically(packages / name, data)


def _contents(types: Iterable[str]) -> dict[str, bytes]:
    """Every file of the distribution, below the packages; what makes it a plug-in comes last."""
    names = [f"{PLUGIN}/__init__.py", f"{_INFO}/METADATA"]
    files = {name: (_FOLDER / name).read_bytes() for name in names}
    files |= {_TYPES: "".join(f"{name}\n" for name in types).encode(), f"{_INFO}/INSTALLER": b"outrider\n"}
    last = {_ENTRY_POINTS: (_FOLDER / _ENTRY_POINTS).read_bytes()}
    rows = [f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in {**files, **last}.items()]
    return files | {_RECORD: "".join([*rows, f"{_RECORD},,\n"]).encode()} | last


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _take_out(packages: Path) -> None:
    """Both folders are the plug-in's own; what makes it a plug-in goes first."""
    if (packages / _ENTRY_POINTS).exists():
        (packages / _ENTRY_POINTS).unlink()
    for folder in (packages / _INFO, packages / PLUGIN):
        if folder.is_dir():
            shutil.rmtree(folder)


def _not_writable(environment: Environment, error: OSError, effect: str, fix: str) -> InputError:
    return InputError(f"the packages of {environment.python} cannot be written to", evidence=str(error), effect=effect, fix=fix)
