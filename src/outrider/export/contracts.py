"""What a drafter's folder must not say, by engine and version: what one folder cannot say to all engines is an error.

Sources are the engines' released wheels; the file or change is named at each rule.
"""

from collections.abc import Callable
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from outrider.core.errors import InputError
from outrider.targets.family import TargetFamily

_ENGINES = ("vllm", "sglang", "reference")
_ANY = "any version"


@dataclass(frozen=True)
class Named:
    """An engine the folder is for; `version` None stands for its newest."""

    engine: str
    version: Version | None

    def within(self, versions: str) -> bool:
        """Whether the version is in a range; the newest is in no range that ends."""
        if self.version is None:
            return "<" not in versions
        return self.version in SpecifierSet(versions, prereleases=True)

    def __str__(self) -> str:
        return f"{self.engine}=={self.version}" if self.version else self.engine


def parse_engines(names: tuple[str, ...]) -> list[Named]:
    """`vllm`, `vllm==0.25.0`, `sglang==0.5.16`; all known engines in their newest version if none is named.

    Raises:
        InputError: an engine or version that cannot be read.
    """
    named: list[Named] = []
    for name in names or _ENGINES:
        engine, _, version = name.partition("==")
        if engine not in _ENGINES:
            raise InputError(f"export knows no engine {engine!r}", fix=f"known: {', '.join(_ENGINES)}, each with ==VERSION if wanted")
        try:
            named.append(Named(engine, Version(version) if version else None))
        except (InvalidVersion, InvalidSpecifier):
            raise InputError(f"{version!r} is not a version", evidence=name) from None
    return named


@dataclass(frozen=True)
class Wish:
    """What the folder is to say."""

    aux_layers: tuple[int, ...]
    num_layers: int
    layer_names: str
    family: TargetFamily


@dataclass(frozen=True)
class Rule:
    """Something an engine cannot take.

    Attributes:
        versions: a specifier set.
        breaks: whether a wish runs into it.
        effect: what would happen.
        fix: what to do.
    """

    engine: str
    versions: str
    breaks: Callable[[Wish], bool]
    effect: str
    fix: str


def _has_own_layers(wish: Wish) -> bool:
    """vLLM's and SGLang's own default is 2, L / 2, L - 3 at any depth."""
    return wish.aux_layers != (2, wish.num_layers // 2, wish.num_layers - 3)


RULES = (
    # models/registry.py: the name came with 0.10.2
    Rule("vllm", "<0.10.2", lambda _: True, "the architecture LlamaForCausalLMEagle3 is not known there", "vLLM 0.10.2 or later"),
    # the key is read from 0.11.1 on
    Rule("vllm", "<0.11.1", _has_own_layers, "aux layers in the config are not read: the default ones would be captured",
         "vLLM 0.11.1 or later, or train on the default layers"),
    # before 0.18.0 the loop tests `idx in layers` before each layer: the last boundary is never reached, 0 raises
    Rule("vllm", "<0.18.0", lambda w: 0 in w.aux_layers, "aux layer 0 raises there", "vLLM 0.18.0 or later, or other layers"),
    Rule("vllm", "<0.18.0", lambda w: w.num_layers in w.aux_layers, "the state after the last layer is never captured there",
         "vLLM 0.18.0 or later, or other layers"),
    # models/llama_eagle3.py: midlayer is renamed from 0.5.12 on; sglang#24663
    Rule("sglang", "<0.5.12", lambda w: w.layer_names == "layers.0", "tensors named layers.0.* are skipped there without a word",
         'layer_names = "midlayer", or SGLang 0.5.12 or later'),
    # sglang#22836
    Rule("sglang", "<0.5.11", _has_own_layers, "aux layers are overwritten with the default ones when CUDA graphs are captured",
         "SGLang 0.5.11 or later, or train on the default layers"),
    Rule("sglang", ">=0", lambda w: 0 in w.aux_layers, "SGLang cannot be told to capture the embeddings", "other layers"),
)  # fmt: skip


def sglang_aux_layers(wish: Wish, named: list[Named]) -> list[int] | None:
    """The ids for `eagle_config`, checked against every rule of every engine named; None if no SGLang is, and none could.

    Raises:
        InputError: something one of the engines would misread; it says what, why and how to mend it.
    """
    for engine in named:
        for rule in RULES:
            if rule.engine == engine.engine and engine.within(rule.versions) and rule.breaks(wish):
                raise InputError(
                    f"this drafter cannot be exported for {engine}",
                    evidence=f"aux layers {list(wish.aux_layers)}, layer names {wish.layer_names!r}",
                    effect=rule.effect,
                    fix=rule.fix,
                )
    wanted = {str(engine): _ids_for(wish, engine) for engine in named if engine.engine == "sglang"}
    distinct = {tuple(ids) for ids in wanted.values()}
    if len(distinct) > 1:
        raise InputError(
            "one folder cannot name these aux layers to all the SGLang versions asked for",
            evidence="; ".join(f"{name} needs {ids}" for name, ids in wanted.items()),
            effect="one of them would capture other layers",
            fix="export once for each",
        )
    if distinct:
        return list(distinct.pop())
    return None if 0 in wish.aux_layers else [layer - 1 for layer in wish.aux_layers]


def _ids_for(wish: Wish, engine: Named) -> list[int]:
    """The ids from which this SGLang's own shift makes the wished layers again."""
    family = wish.family
    if family.sglang_shift_depends_on_first_id and engine.within(">=0.5.13"):
        ids = family.sglang_aux_layers(wish.aux_layers)
        if ids is None:
            raise InputError(
                f"{engine} cannot be told to capture layers {list(wish.aux_layers)} of a {family.id} target",
                evidence="it adds one to all ids if the first is 1, and to none otherwise (sglang#25454)",
                fix="choose layers whose first is not 1",
            )
        return ids
    return [layer - 1 for layer in wish.aux_layers]
