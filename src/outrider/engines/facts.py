"""What an engine of one version accepts, as data: read from its installed source, never by importing it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Listed:
    """Names that an engine lists somewhere.

    Attributes:
        names: in the order of the source.
        evidence: file and line.
    """

    names: tuple[str, ...]
    evidence: str


@dataclass(frozen=True)
class EngineFacts:
    """The gates of one engine version.

    Attributes:
        source: where all this was read.
        runner: the model runner that a launch would take, where there are several; None if it cannot be told.
        target_types: substrings one of which the text config's model_type must contain; None if this version has no list.
        drafters: drafter architecture → the class that serves it, after the engine's own rewrites.
        drafters_evidence: file of that registry.
        targets: target architecture → the class that serves it.
        interface_classes: target classes that can hand out aux states; None if the engine needs no such interface.
        interface_evidence: how that was read.
        refuses_full_d2t: whether a d2t beside a whole vocabulary is refused.
        drops_duplicate_layers: whether equal aux layers are made one.
    """

    engine: str
    version: str
    source: str
    runner: str | None
    target_types: Listed | None
    drafters: Mapping[str, str]
    drafters_evidence: str
    targets: Mapping[str, str]
    interface_classes: frozenset[str] | None
    interface_evidence: str
    refuses_full_d2t: bool
    drops_duplicate_layers: bool
