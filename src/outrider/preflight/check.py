"""What every check defines, and what it looks at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from outrider.core.results import Finding, Verdict
from outrider.engines.facts import EngineFacts
from outrider.formats.safetensors_file import TensorEntry
from outrider.preflight.behaviour import Behaviour, behaviour_of

# where a wrapper keeps the config of its language model
_NESTED: Final = ("text_config", "thinker_config", "llm_config", "language_config")
_LARGEST: Final = 2**31


@dataclass(frozen=True)
class Subject:
    """One target, one drafter, one engine version.

    Attributes:
        target_config: config.json as it stands.
        target_tensors: every tensor's header; None where the folder holds no shards.
        drafter_path: its folder; None for a drafter that is only planned.
        drafter_config: config.json as it stands, or as it is to be.
        drafter_tensors: every tensor's header, or None.
        drafter_unread: why there are no headers of the drafter; empty if there are.
    """

    target_path: Path
    target_config: Mapping[str, Any]
    target_tensors: Mapping[str, TensorEntry] | None
    drafter_path: Path | None
    drafter_config: Mapping[str, Any]
    drafter_tensors: Mapping[str, TensorEntry] | None
    drafter_unread: str
    facts: EngineFacts

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The config of the target's language model: nested in a wrapper's, or the whole."""
        config = self.target_config
        while nested := next((config[key] for key in _NESTED if isinstance(config.get(key), dict)), None):
            config = nested
        return config

    @property
    def target_file(self) -> str:
        """Where the target's config stands."""
        return str(self.target_path / "config.json")

    @property
    def drafter_file(self) -> str:
        """Where the drafter's config stands."""
        return str(self.drafter_path / "config.json") if self.drafter_path else "the config that export would write"

    @property
    def engine(self) -> str:
        """The engine's name and version, as findings call it."""
        return f"{self.facts.engine} {self.facts.version}"

    @property
    def behaviour(self) -> Behaviour:
        """What its engine does in all versions."""
        return behaviour_of(self.facts)


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        id: the plug-in's id, and that of its finding.
        order: of its finding among the others.
        run: looks at the subject; never loads a tensor's numbers but those of the vocabulary map. Raises InputError.
    """

    id: str
    order: int
    run: Callable[[Subject], Finding]


def finding(check_id: str, verdict: Verdict, title: str, evidence: str, **parts: str) -> Finding:
    """A finding that always has evidence; parts are found, expected, effect and fix."""
    return Finding(id=check_id, verdict=verdict, title=title, evidence=evidence, **parts)


def whole(config: Mapping[str, Any], key: str) -> int | None:
    """A positive number of a config; None if there is none, or one that no model has."""
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST else None
