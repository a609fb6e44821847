"""Whether the drafter holds the tensors that its class reads, and no others."""

from typing import Final

from outrider.core.results import Finding
from outrider.preflight.check import Check, Subject, finding, whole
from outrider.preflight.layout import EMBEDDING, HEAD, Layout, layout_of
from outrider.preflight.reading import shown

_ID = "tensor_names"
# they have a check of their own
_MAPS: Final = frozenset({"d2t", "t2d"})
# what a drafter of vLLM's Llama class is fed where a state is not there yet; left out unless it drafts in parallel
_MASK: Final = "mask_hidden"
_NO_MASK: Final = "the start ends while the drafter is loaded: parallel drafting needs mask_hidden"
# left in checkpoints by old software; engines drop them
_DROPPED: Final = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
_MISSING: Final = {
    "silent": "{engine} loads without a word and leaves what is missing as it happens to be: nearly every draft is rejected",
    "refused": "{engine} refuses the folder",
}
_UNEXPECTED: Final = {
    "silent": "{engine} skips what it does not know without a word",
    "refused": "the start ends after the target is loaded: there is no module or parameter of that name",
}
_BIASES: Final = "a bias that has no place ends the start or is skipped without a word, by version"


def _run(subject: Subject) -> Finding:
    layout, tensors = layout_of(subject), subject.drafter_tensors
    if isinstance(layout, Layout) and layout.num_layers > 1 and layout.loading is not None and layout.loading.num_layers == "one":
        return _too_deep(subject, layout)
    if tensors is None:
        return finding(_ID, "unknown", "the drafter's tensors could not be looked at", subject.drafter_unread)
    if isinstance(layout, str):
        return finding(_ID, "unknown", f"which tensors the drafter should hold cannot be told: {layout}", subject.drafter_file)
    present, unexpected = _read(subject, layout, set(tensors))
    missing = sorted(name for name in _wanted(subject, layout, present) if name not in present)
    if not missing and not unexpected:
        return _sound(subject, layout, present)
    if missing == [HEAD] and not unexpected and _takes_targets_head(layout):
        return _warning(
            subject, "the drafter has no lm_head of its own", "takes the target's: right only if the drafter was trained with it"
        )
    place = f"headers in {subject.drafter_path}"
    return finding(
        _ID,
        "fail",
        f"{len(missing)} tensors are missing and {len(unexpected)} are not known",
        place if layout.loading is None else f"{place}; {layout.loading.evidence}",
        found=f"not known: {shown(unexpected)}" if unexpected else "",
        expected=f"missing: {shown(missing)}" if missing else "",
        effect="; ".join(_effects(subject, layout, missing, unexpected)),
        fix=_fix(layout, unexpected),
    )


def _read(subject: Subject, layout: Layout, stored: set[str]) -> tuple[set[str], list[str]]:
    """The tensors that have a place, by our names, and the stored names of those that have none."""
    present: set[str] = set()
    unexpected: list[str] = []
    strict = layout.loading is not None and layout.loading.missing == "refused"
    for name in stored:
        ours = layout.our_name(name)
        if ours is not None and (ours in layout.shapes or ours in _MAPS or (ours == _MASK and _reads_mask(subject, layout))):
            present.add(ours)
        elif strict or not name.endswith(_DROPPED):
            unexpected.append(name)
    return present, sorted(unexpected)


def _wanted(subject: Subject, layout: Layout, present: set[str]) -> list[str]:
    """An embedding that is missing is taken from the target, unless that one is of another width."""
    target_width = whole(subject.text_config, "hidden_size")
    cannot_share = EMBEDDING not in present and target_width is not None and target_width != layout.hidden_size
    drafts_in_parallel = subject.arguments.speculative.get("parallel_drafting") is True and _reads_mask(subject, layout)
    return [*layout.needed, *[EMBEDDING] * cannot_share, *[_MASK] * drafts_in_parallel]


def _reads_mask(subject: Subject, layout: Layout) -> bool:
    return subject.facts.engine == "vllm" and "parallel_drafting" in subject.facts.speculative_keys and not layout.has_mla


def _takes_targets_head(layout: Layout) -> bool:
    """Where the target's head is taken and has as many rows; by SGLang, only for a config without draft_vocab_size."""
    shares = "never" if layout.loading is None else layout.loading.shares_head
    return layout.draft_vocab_size == layout.vocab_size and shares == "absent"


def _sound(subject: Subject, layout: Layout, present: set[str]) -> Finding:
    """All is there; but some engines put the target's in its place."""
    loading, says = layout.loading, subject.drafter_config.get("draft_vocab_size")
    if loading is not None and loading.shares_head == "null" and says is None and HEAD in present:
        return _warning(
            subject, "the drafter's own lm_head is not used", "takes the target's head for a config that says no draft_vocab_size"
        )
    same_width = whole(subject.text_config, "hidden_size") == layout.hidden_size
    if loading is not None and loading.embedding == "target" and same_width and EMBEDDING in present:
        return _warning(
            subject, "the drafter's own embedding is not used", "puts the target's in its place: right only if they are the same"
        )
    place = f"headers in {subject.drafter_path}"
    return finding(_ID, "pass", f"all {len(layout.needed)} tensors that the drafter needs are there, and no others", place)


def _warning(subject: Subject, title: str, effect: str) -> Finding:
    loading = subject.facts.loading
    place = f"headers in {subject.drafter_path}" + (f"; {loading.evidence}" if loading is not None else "")
    return finding(_ID, "warn", title, place, effect=f"{subject.engine} {effect}")


def _too_deep(subject: Subject, layout: Layout) -> Finding:
    return finding(
        _ID,
        "fail",
        f"the drafter has {layout.num_layers} layers, {subject.engine} builds one",
        f"{subject.drafter_file}; {layout.loading.evidence if layout.loading else subject.facts.source}",
        effect="the start ends while the drafter is loaded",
        fix="a later version, or a drafter of one layer",
    )


def _effects(subject: Subject, layout: Layout, missing: list[str], unexpected: list[str]) -> list[str]:
    if layout.loading is None:
        return ["engines leave out or refuse what they do not find or know"]
    effects = [_NO_MASK] * (_MASK in missing)
    effects += [_MISSING[layout.loading.missing].format(engine=subject.engine)] * any(name != _MASK for name in missing)
    if unexpected and all(name.endswith(".bias") for name in unexpected):
        return [*effects, _BIASES]
    return [*effects, *[_UNEXPECTED[layout.loading.unexpected].format(engine=subject.engine)] * bool(unexpected)]


def _fix(layout: Layout, unexpected: list[str]) -> str:
    if any(name.startswith("model.") for name in unexpected):
        return "take `model.` off the names: midlayer.* or layers.0.*, fc, norm, lm_head"
    known = ("midlayer", "layers.0") if layout.loading is None else layout.loading.layer_names
    names = " or ".join(f"{name}.*" for name in known)
    return f"export the drafter again, or mend the names: {names}, fc, norm, lm_head"


CHECK = Check(id=_ID, order=110, run=_run)
