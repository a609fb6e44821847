"""The engine's own arguments, as far as a check asks for them."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from outrider.core.errors import InputError
from outrider.engines.facts import EngineFacts

_SHORT: Final = {"-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-q": "quantization", "-sc": "speculative-config"}
# SGLang's spelling → the one that both engines understand
_LONG: Final = {
    "tp": "tensor-parallel-size",
    "tp-size": "tensor-parallel-size",
    "pp-size": "pipeline-parallel-size",
    "speculative-draft-model": "speculative-draft-model-path",
}
# cut short, as the command lines of both engines take them
_CUT: Final = {"tensor-parallel": "tensor-parallel-size", "pipeline-parallel": "pipeline-parallel-size"}
# engine → what it calls by a name of its own
_SPELT: Final = {"vllm": frozenset(_SHORT), "sglang": frozenset(f"--{name}" for name in _LONG if not name.startswith("speculative-"))}


@dataclass(frozen=True)
class ServeArgs:
    """Arguments of an engine's server.

    Attributes:
        values: name without dashes, words joined by `-` → its value; empty for a switch.
        speculative: vLLM's --speculative-config, in whichever way it was given; SGLang's --speculative-X under `X`, with `_`.
        foreign: engine → the arguments that are spelt as another engine spells them, e.g. `--tp` for vLLM.
    """

    values: Mapping[str, str]
    speculative: Mapping[str, Any]
    foreign: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def number(self, name: str, default: int) -> int:
        """A whole number, or the default where it is not given.

        Raises:
            InputError: it is given and no whole number above 0.
        """
        value = self.values.get(name)
        if value is None:
            return default
        if not value.isascii() or not value.isdigit() or int(value) < 1:
            raise InputError(f"--{name} is no whole number above 0", evidence=f"--{name} {value}")
        return int(value)

    def has(self, name: str) -> bool:
        """Whether a switch is given and not taken back."""
        return self.values.get(name, "false").lower() not in ("false", "0")


def parsed(arguments: Sequence[str]) -> ServeArgs:
    """Read an engine's arguments.

    Raises:
        InputError: a speculative config that is no JSON object.
    """
    values = dict(_pairs(arguments))
    speculative: dict[str, Any] = {}
    for name, value in values.items():
        if name == "speculative-config":
            speculative |= _object(value)
        elif name.startswith("speculative-config."):
            speculative[name.partition(".")[2].replace("-", "_")] = _plain(value)
        elif name.startswith("speculative-"):
            speculative[name.removeprefix("speculative-").replace("-", "_")] = value
    for short, key in (("spec-method", "method"), ("spec-model", "model"), ("spec-tokens", "num_speculative_tokens")):
        if short in values:
            speculative[key] = _plain(values[short])
    return ServeArgs(values, speculative, _foreign(arguments))


def completed(arguments: ServeArgs, facts: EngineFacts) -> ServeArgs:
    """Arguments of speculation by their whole names: SGLang's command line takes as much of one as tells it from the others."""
    if facts.engine != "sglang":
        return arguments
    whole = {key: _only(key, facts.speculative_keys) for key in arguments.speculative}
    flags = {f"speculative-{key}".replace("_", "-"): f"speculative-{full}".replace("_", "-") for key, full in whole.items()}
    return ServeArgs(
        {flags.get(name, name): value for name, value in arguments.values.items()},
        {whole[key]: value for key, value in arguments.speculative.items()},
        arguments.foreign,
    )


def _only(key: str, known: Sequence[str]) -> str:
    beginning = [] if key in known else [name for name in known if name.startswith(key)]
    return beginning[0] if len(beginning) == 1 else key


def split(text: str) -> list[str]:
    """Arguments in one string, as a shell splits them.

    Raises:
        InputError: an open quote.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError("the serve arguments cannot be split", evidence=str(error), fix="close the quotes") from None


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    pending: str | None = None
    for argument in arguments:
        if not _is_name(argument):
            if pending is not None:
                yield pending, argument
            pending = None
            continue
        if pending is not None:
            yield pending, "true"
        written, equals, value = argument.partition("=")
        name = _SHORT.get(written) or written.lstrip("-").replace("_", "-")
        name = (_LONG | _CUT).get(name, name)
        if equals:
            yield name, value
        pending = None if equals else name
    if pending is not None:
        yield pending, "true"


def _foreign(arguments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    written = [argument.partition("=")[0].replace("_", "-") for argument in arguments if _is_name(argument)]
    others = {engine: frozenset().union(*(names for other, names in _SPELT.items() if other != engine)) for engine in _SPELT}
    return {engine: tuple(name for name in written if name in names) for engine, names in others.items()}


def _is_name(argument: str) -> bool:
    return argument.startswith("--") or argument.partition("=")[0] in _SHORT


def _plain(text: str) -> Any:
    """A value that was given by itself, as it would stand in a JSON object: a number, true, false, or a word."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError("--speculative-config is not valid JSON", evidence=f"{text[:200]}: {error}") from None
    if not isinstance(value, dict):
        raise InputError("--speculative-config is no JSON object", evidence=text[:200])
    return value
