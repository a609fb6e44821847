"""What an engine of one version accepts, as data: read from its source, never by importing it.

The same shape holds what is read from an installed engine and what is kept, one JSON file a version, for engines that
are only named (`known.py`). An empty tuple or mapping means "could not be read", None means "this version has none".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Listed:
    """Names that an engine lists somewhere.

    Attributes:
        names: in the order of the source.
        evidence: file and line.
        methods: of speculation that the list is for.
    """

    names: tuple[str, ...]
    evidence: str
    methods: tuple[str, ...] = ("eagle3",)


@dataclass(frozen=True)
class Rewrite:
    """One change that an engine makes to a drafter's config before it looks the architecture up.

    It applies where the config's model_type is one of `types`, or its first architecture is one of `architectures`.

    Attributes:
        becomes: the architecture that stands there then.
        becomes_type: the model_type that stands there then; empty if it stays.
        evidence: file and line.
    """

    types: tuple[str, ...]
    architectures: tuple[str, ...]
    becomes: str
    becomes_type: str
    evidence: str


@dataclass(frozen=True)
class ImageToken:
    """An attribute that the engine reads from the config of a target that takes images, once all is loaded.

    Attributes:
        attribute: of the target's config, e.g. `image_token_index`.
        by_class: target class → the attribute that is read for it instead, dotted where nested.
        evidence: file and line.
    """

    attribute: str
    by_class: Mapping[str, str]
    evidence: str


@dataclass(frozen=True)
class LayerKey:
    """A place in the drafter's config where an engine looks for the ids of its aux layers.

    Attributes:
        path: dotted, e.g. `eagle_config.eagle_aux_hidden_state_layer_ids`.
        shift: added to each id; the result counts layers run. A target class may have a rule of its own.
    """

    path: str
    shift: int


@dataclass(frozen=True)
class RunnerFacts:
    """What differs between the model runners of one version; an engine with a single runner has one of these.

    Attributes:
        layer_keys: where aux layers are looked for, first found first; no key: the default layers, always.
        layer_keys_evidence: file and line.
        image_token: the gate for targets that take images; None if this runner has none.
        drafter_classes: classes one of which the drafter must be or inherit from, asserted at the first draft, subclasses
            included; None if nothing is asserted.
        drafter_classes_evidence: file and line; empty without an assertion.
        interface_error: what the engine says where the target's class lacks the interface, with file and line.
        pipeline: whether drafting works over several pipeline stages: for no target, for the `pipeline_classes`, or for all.
    """

    layer_keys: tuple[LayerKey, ...]
    layer_keys_evidence: str
    image_token: ImageToken | None
    drafter_classes: tuple[str, ...] | None
    drafter_classes_evidence: str
    interface_error: str
    pipeline: Literal["none", "listed", "all", "unknown"]


@dataclass(frozen=True)
class RunnerChoice:
    """Which launches take the second model runner (V2), the environment variable aside.

    Attributes:
        listed: target architectures that take it.
        listed_needs: of those, only `dense` ones, only `unquantised` ones, or both.
        others: which other targets take it.
        not_methods: methods of speculation that keep the first.
        needs_triton: whether it is only taken where Triton is.
        evidence: file and line.
    """

    listed: tuple[str, ...]
    listed_needs: tuple[Literal["dense", "unquantised"], ...]
    others: Literal["none", "dense", "all"]
    not_methods: tuple[str, ...]
    needs_triton: bool
    evidence: str


@dataclass(frozen=True)
class Loading:
    """How the weights of an EAGLE-3 drafter are read.

    Attributes:
        layer_names: prefixes under which the first layer is found: `midlayer`, `layers.0`.
        reads_model_prefix: whether `model.midlayer…` is read like `midlayer…`.
        missing: what happens to a tensor that is not there: it stays random without a word, or the start ends.
        unexpected: what happens to a tensor that is not known.
        shares_head: when the target's head is taken: where the drafter has none, where its config says
            `draft_vocab_size: null`, or never.
        embedding: whose is used: the drafter's own where it has one, or always the target's.
        num_layers: whether drafters of several layers are built.
        needs_draft_vocab_size: whether a config without that key is refused.
        evidence: files and lines.
    """

    layer_names: tuple[str, ...]
    reads_model_prefix: bool
    missing: Literal["silent", "refused"]
    unexpected: Literal["silent", "refused"]
    shares_head: Literal["absent", "null", "never"]
    embedding: Literal["own", "target"]
    num_layers: Literal["one", "many"]
    needs_draft_vocab_size: bool
    evidence: str


@dataclass(frozen=True)
class EngineFacts:
    """The gates of one engine version.

    Attributes:
        source: where all this was read.
        runner: the model runner of every launch; None where the launch decides (`runner_choice`) or it cannot be told.
        target_types: substrings one of which the text config's model_type must contain; None if this version has no list.
        drafters: drafter architecture → the class that serves it, by the names a config may use for method eagle3.
        drafters_evidence: file of that registry.
        targets: target architecture → the class that serves it.
        interface_classes: target classes that can hand out aux states; None if the engine needs no such interface.
        interface_evidence: how that was read.
        refuses_full_d2t: whether a d2t beside a whole vocabulary ends the start.
        drops_duplicate_layers: whether equal aux layers are made one.
        loading: how an EAGLE-3 drafter's weights are read; None if it could not be read.
        runners: by name; an engine without such a choice has one, named "".
        runner_choice: None if there is nothing to choose.
        requires: package → the versions that the engine's metadata asks for: torch, transformers.
        methods: of speculation, by the engine's words in lower case.
        methods_evidence: file and line.
        speculative_keys: vLLM: keys of --speculative-config; SGLang: arguments that begin with --speculative-.
        registered: every drafter architecture of the registry, of all methods → its class.
        rewrites: what is made of a drafter's config before the registry is asked, in order.
        config_types: model_types whose config class the engine brings itself, so that no remote code is needed.
        multimodal_classes: target classes that take images or sound.
        pipeline_classes: target classes that hand out aux states over pipeline stages.
        layer_shifts: target class → rule for ids of aux layers where it is not that of the key: `literal`, `plus_one`,
            `plus_one_if_first_is_1`, `plus_one_unless_largest_is_L`; `unknown` where its text is not understood.
        default_layers: what is captured where no ids are found, as formulas of L.
        drafter_keys: keys of a drafter's config that the version's drafter classes read.
        metrics: names in /metrics that speak of speculation.
        attention_backends: names that the version lists.
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
    loading: Loading | None = None
    runners: Mapping[str, RunnerFacts] = field(default_factory=dict)
    runner_choice: RunnerChoice | None = None
    requires: Mapping[str, str] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    methods_evidence: str = ""
    speculative_keys: tuple[str, ...] = ()
    registered: Mapping[str, str] = field(default_factory=dict)
    rewrites: tuple[Rewrite, ...] = ()
    config_types: tuple[str, ...] = ()
    multimodal_classes: frozenset[str] = frozenset()
    pipeline_classes: frozenset[str] = frozenset()
    layer_shifts: Mapping[str, str] = field(default_factory=dict)
    default_layers: tuple[str, ...] = ("2", "L // 2", "L - 3")
    drafter_keys: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    attention_backends: tuple[str, ...] = ()
