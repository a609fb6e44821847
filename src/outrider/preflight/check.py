"""What every check defines, and what it looks at."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.version import Version

from outrider.core.results import Finding, Verdict
from outrider.engines.facts import EngineFacts, RunnerFacts
from outrider.engines.known import Standing
from outrider.formats.safetensors_file import TensorEntry
from outrider.preflight.serve_args import ServeArgs
from outrider.preflight.versions import version_of

# where a wrapper keeps the config of its language model
_NESTED: Final = ("text_config", "thinker_config", "llm_config", "language_config")
_LARGEST: Final = 2**31
# keys by which a config speaks of experts
_EXPERTS: Final = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
# methods that the second runner alone has, and so force it
_SECOND_ONLY: Final = ("dspark",)
# how the keys begin by which a config speaks of layers that keep a state instead of keys and values
_STATE_SPACE: Final = ("mamba_", "ssm_", "linear_", "hybrid_")


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
        arguments: the engine's own, of the launch that is meant.
        algorithm: that the drafter is of, by its config; None if that does not tell.
        method: that the engine would be told, in its words and lower case; None if it cannot be told.
        method_source: where the method comes from.
        standing: whether the facts are of this very version, or of the nearest that is known.
    """

    target_path: Path
    target_config: Mapping[str, Any]
    target_tensors: Mapping[str, TensorEntry] | None
    drafter_path: Path | None
    drafter_config: Mapping[str, Any]
    drafter_tensors: Mapping[str, TensorEntry] | None
    drafter_unread: str
    facts: EngineFacts
    arguments: ServeArgs
    algorithm: str | None
    method: str | None
    method_source: str
    standing: Standing = "exact"

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
    def target_architectures(self) -> list[str]:
        """Those that the target's config names."""
        return names_of(self.target_config.get("architectures"))

    @property
    def target_classes(self) -> list[str]:
        """The engine's classes for the architectures that the target's config names, first the one it takes."""
        return [self.facts.targets[name] for name in self.target_architectures if name in self.facts.targets]

    @property
    def runner(self) -> str | None:
        """The name of the model runner that the launch would take; None if it cannot be told."""
        return runner_of(self)

    @property
    def runner_facts(self) -> RunnerFacts | None:
        """The facts of that runner."""
        return self.facts.runners.get(self.runner or "")


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        id: the plug-in's id, and that of its finding.
        order: of its finding among the others.
        run: looks at the subject; never loads a tensor's numbers but those of the vocabulary map. Raises InputError.
        of_version: whether the finding depends on the engine's version, and so cannot be told for one that is not known.
    """

    id: str
    order: int
    run: Callable[[Subject], Finding]
    of_version: bool = True


def runner_of(subject: Subject) -> str | None:
    """By the version's own rule, for a launch that sets no variable to choose one.

    Of what keeps the first runner, only what the configs and the arguments of speculation say is looked at.
    """
    facts = subject.facts
    choice = facts.runner_choice
    if facts.runner or choice is None:
        return facts.runner
    if subject.method in choice.not_methods or any(keeps(subject) for keeps in _kept_by(facts)):
        return "V1"
    if subject.method in _SECOND_ONLY:
        return "V2"
    is_dense = not has_experts(subject.text_config)
    # the engine looks at the outer config alone
    fits = {"dense": is_dense, "unquantised": subject.target_config.get("quantization_config") is None}
    if any(name in choice.listed for name in subject.target_architectures) and all(fits[need] for need in choice.listed_needs):
        return "V2"
    if choice.others == "all":
        return "V2"
    is_hybrid = any(key.startswith(_STATE_SPACE) for key in subject.text_config)
    return "V2" if choice.others == "dense" and is_dense and not is_hybrid else "V1"


def _kept_by(facts: EngineFacts) -> Iterator[Callable[[Subject], bool]]:
    """What keeps the first runner in this version, the method aside."""
    version = version_of(facts)
    yield from (keeps for until, keeps in _KEEPS_V1 if until is None or version < until)


def _drafts_in_parallel(subject: Subject) -> bool:
    return subject.method not in ("dflash", "dspark") and subject.arguments.speculative.get("parallel_drafting") is True


def _eagle3_over_stages(subject: Subject) -> bool:
    return subject.method == "eagle3" and subject.arguments.number("pipeline-parallel-size", 1) > 1


# vllm/config/vllm.py _get_v2_model_runner_unsupported_features: first version without it, what it is
_KEEPS_V1: Final[tuple[tuple[Version | None, Callable[[Subject], bool]], ...]] = (
    (None, _drafts_in_parallel),
    (Version("0.30.0"), _eagle3_over_stages),
)


def finding(check_id: str, verdict: Verdict, title: str, evidence: str, **parts: str) -> Finding:
    """A finding that always has evidence; parts are found, expected, effect and fix."""
    return Finding(id=check_id, verdict=verdict, title=title, evidence=evidence, **parts)


def has_experts(config: Mapping[str, Any]) -> bool:
    """Whether a config speaks of a mixture of experts."""
    return any(config.get(key) for key in _EXPERTS)


def names_of(value: object) -> list[str]:
    """The strings of a list, or none."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def whole(config: Mapping[str, Any], key: str) -> int | None:
    """A positive number of a config; None if there is none, or one that no model has."""
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST else None
