"""Whether the drafter holds the tensors that its class reads, and no others."""

from outrider.core.results import Finding
from outrider.formats.llama_eagle3_layout import our_name
from outrider.preflight.check import Check, Subject, finding, whole
from outrider.preflight.layout import Layout, layout_of
from outrider.preflight.reading import shown

_ID = "tensor_names"
_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
# what a drafter may hold or not; d2t and t2d have a check of their own
_OPTIONAL = {_EMBEDDING, "d2t", "t2d"}


def _run(subject: Subject) -> Finding:
    layout, tensors = layout_of(subject), subject.drafter_tensors
    if tensors is None:
        return finding(_ID, "unknown", "the drafter's tensors could not be looked at", subject.drafter_unread)
    if isinstance(layout, str):
        return finding(_ID, "unknown", f"which tensors the drafter should hold cannot be told: {layout}", subject.drafter_file)
    by_our_name = {our_name(name): name for name in tensors if subject.behaviour.reads_model_prefix or not name.startswith("model.")}
    missing = sorted(name for name in _wanted(subject, layout, by_our_name) if name not in by_our_name)
    unexpected = sorted(set(tensors) - {stored for ours, stored in by_our_name.items() if ours in layout.shapes or ours in _OPTIONAL})
    place = f"headers in {subject.drafter_path}"
    if not missing and not unexpected:
        return finding(_ID, "pass", f"all {len(layout.shapes)} tensors that the drafter needs are there, and no others", place)
    if missing == [_HEAD] and not unexpected and _may_share_head(subject, layout):
        return finding(
            _ID,
            "warn",
            "the drafter has no lm_head of its own",
            place,
            effect=f"{subject.engine} takes the target's: right only if the drafter was trained with it",
        )
    effects = [subject.behaviour.missing] * bool(missing) + [subject.behaviour.unexpected] * bool(unexpected)
    return finding(
        _ID,
        "fail",
        f"{len(missing)} tensors are missing and {len(unexpected)} are not known",
        place,
        found=f"not known: {shown(unexpected)}" if unexpected else "",
        expected=f"missing: {shown(missing)}" if missing else "",
        effect="; ".join(dict.fromkeys(effects)),
        fix=_fix(unexpected),
    )


def _wanted(subject: Subject, layout: Layout, present: dict[str, str]) -> list[str]:
    """An embedding that is missing is taken from the target, unless that one is of another width."""
    target_width = whole(subject.text_config, "hidden_size")
    cannot_share = _EMBEDDING not in present and target_width is not None and target_width != layout.config.hidden_size
    return [*layout.shapes, _EMBEDDING] if cannot_share else [*layout.shapes]


def _may_share_head(subject: Subject, layout: Layout) -> bool:
    return subject.behaviour.shares_lm_head and layout.config.draft_vocab_size == layout.config.vocab_size


def _fix(unexpected: list[str]) -> str:
    if any(name.startswith("model.") for name in unexpected):
        return "take `model.` off the names: midlayer.* or layers.0.*, fc, norm, lm_head"
    return "export the drafter again, or mend the names: midlayer.* or layers.0.*, fc, norm, lm_head"


CHECK = Check(id=_ID, order=40, run=_run)
