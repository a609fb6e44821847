"""A plug-in of vLLM 0.9.2 to 0.21.0: further types of targets may be drafted for than its list names.

The list is a local variable of a validator, so it cannot be extended where it stands. The validator is kept as it is and
shown the same configuration with one difference: the target's type, where it is to be accepted, answers yes when it is
asked whether it contains a listed name. Nothing else sees that: the type itself stays what it is, every other check of
the validator runs, and all of it holds in the memory of the process that loads the plug-in only.

Types are told between commas in the variable OUTRIDER_LIFT_TARGET_TYPES, and a line each in the file target_types.txt
beside this one. As in vLLM's own list, a name stands for every type that contains it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "OUTRIDER_LIFT_TARGET_TYPES"
FILE = Path(__file__).with_name("target_types.txt")
_VALIDATOR = "_verify_args"


def told_types() -> list[str]:
    """The types that are to be accepted."""
    lines = FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else []
    return sorted({word.strip() for word in [*os.environ.get(VARIABLE, "").split(","), *lines]} - {""})


def lift() -> None:
    """Called by vLLM in each of its processes; does nothing where no type is told or the version has no list."""
    types = told_types()
    if not types:
        return
    from pydantic.dataclasses import rebuild_dataclass
    from vllm.config import SpeculativeConfig, VllmConfig

    validator = SpeculativeConfig.__pydantic_decorators__.model_validators.get(_VALIDATOR)
    if validator is None or "model_type" not in validator.func.__code__.co_names:
        return
    validator.func = _accepting(types, validator.func)
    # VllmConfig checks the SpeculativeConfig in it once more, by a copy of its validators
    for config in (SpeculativeConfig, VllmConfig):
        rebuild_dataclass(config, force=True)
    logging.getLogger("vllm.outrider_gate").info("the list of target types is lifted in this process for %s", ", ".join(types))


def _accepting(types: list[str], original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def verify(config: Any) -> Any:
        target = config.target_model_config
        model_type = target.hf_text_config.model_type if target else ""
        if not any(name in model_type for name in types):
            return original(config)
        text = _Seen(target.hf_text_config, "model_type", _Accepted(model_type))
        original(_Seen(config, "target_model_config", _Seen(target, "hf_text_config", text)))
        return config

    return verify


class _Accepted(str):
    """A type as it is, but that it contains every name."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        return True


class _Seen:
    """An object as it is, but for one attribute."""

    def __init__(self, real: Any, name: str, value: Any) -> None:
        self.__dict__.update(_real=real, **{name: value})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)
