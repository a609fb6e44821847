"""Whether code that comes with the model has to be run, and may be."""

from collections.abc import Mapping
from typing import Any, Final

from outrider.core.errors import InputError
from outrider.core.results import Finding
from outrider.preflight.check import Check, Subject, finding
from outrider.preflight.config_types import read_without_remote_code
from outrider.preflight.reading import read_object, shown

_ID = "remote_code"
_FLAG: Final = "trust-remote-code"
_FIX: Final = f"--{_FLAG} among the serve arguments, once the code has been read"
# files of a target that may name code of their own, by the key that does
_BESIDE: Final = (("tokenizer_config.json", "AutoTokenizer"), ("preprocessor_config.json", "AutoImageProcessor"))


def _run(subject: Subject) -> Finding:
    if subject.arguments.has(_FLAG):
        return finding(_ID, "pass", "code that comes with the model may be run", f"--{_FLAG}")
    for what, config, place in (
        ("target", subject.target_config, subject.target_file),
        ("drafter", subject.drafter_config, subject.drafter_file),
    ):
        if found := _of_config(subject, what, config, place):
            return found
    return _of_files(subject) or finding(
        _ID, "pass", f"{subject.engine} needs no code that comes with the model", f"{subject.target_file}; {subject.drafter_file}"
    )


def _of_config(subject: Subject, what: str, config: Mapping[str, Any], place: str) -> Finding | None:
    code, model_type = _code(config, "AutoConfig"), config.get("model_type")
    if not code:
        return None
    found = f"model_type = {shown(model_type)}, auto_map = {shown(code)}   ({place})"
    match read_without_remote_code(subject.facts, model_type):
        case "yes":
            return None
        case "untold":
            title = f"the {what}'s config comes with code, which transformers may need to read it"
            return finding(
                _ID, "unknown", title, place, found=found, effect="if it does: the server ends seconds after its start", fix=_FIX
            )
        case "no":
            title = f"{subject.engine} reads the {what}'s config only by the code that comes with it, which is not allowed"
            return finding(_ID, "fail", title, place, found=found, effect="the server ends seconds after its start", fix=_FIX)


def _of_files(subject: Subject) -> Finding | None:
    for name, key in _BESIDE:
        path = subject.target_path / name
        if not path.is_file():
            continue
        try:
            config = read_object(path, name)
        except InputError as error:
            return finding(_ID, "unknown", f"{error.what}: whether it asks for code cannot be told", error.evidence)
        code = _code(config, key)
        # a class of that very name in the code is one that transformers does not have
        if code and (key != "AutoTokenizer" or str(config.get("tokenizer_class")) == code.rpartition(".")[2]):
            return finding(
                _ID,
                "warn",
                f"{name} comes with code, which is not allowed",
                str(path),
                found=f"auto_map: {key} = {shown(code)}",
                effect=f"the server ends seconds after its start, unless {subject.engine} has a class of its own for it",
                fix=_FIX,
            )
    return None


def _code(config: Mapping[str, Any], key: str) -> str:
    """The class that a file names for code of its own, e.g. `configuration_kimi.KimiConfig`; empty if it names none."""
    auto_map = config.get("auto_map")
    named = auto_map.get(key) if isinstance(auto_map, dict) else None
    named = next((part for part in named if isinstance(part, str)), None) if isinstance(named, list) else named
    return named if isinstance(named, str) else ""


CHECK = Check(id=_ID, order=50, run=_run)
