"""Whether the map from the draft vocabulary to the target's is there when it must be, and right."""

from collections.abc import Sequence
from itertools import pairwise

from outrider.core.results import Finding, Verdict
from outrider.formats.deepseek_eagle3_layout import recognises as has_mla
from outrider.formats.safetensors_file import TensorEntry, has_data, read_bytes, read_int64
from outrider.preflight.check import Check, Subject, finding, whole
from outrider.preflight.layout import loading_of
from outrider.preflight.plain_config import plain_config
from outrider.preflight.reading import shown

_ID = "vocabulary_map"
_OTHER = "put config and weights of one drafter together, or export again"
_FIX = "d2t[i] must be the target's id of draft token i, less i; `outrider export` writes it so"


def _run(subject: Subject) -> Finding:
    tensors, config = subject.drafter_tensors, plain_config(subject)
    if "draft_vocab_size" not in config and _needs_key(subject):
        return _bad(
            subject,
            "the config has no draft_vocab_size",
            f"{subject.engine} reads it without asking whether it is there: the start ends while the drafter is loaded",
            "write it: the whole vocabulary's size, or null for the target's own head",
        )
    v = whole(config, "vocab_size")
    u = whole(config, "draft_vocab_size") if config.get("draft_vocab_size") is not None else v
    if v is None or u is None:
        return finding(_ID, "unknown", "the config does not say how large the vocabularies are", subject.drafter_file)
    if u > v:
        return _bad(subject, f"the draft vocabulary has {u} tokens, the whole one {v}", "drafts name no token of the target", _OTHER)
    if tensors is None:
        return finding(_ID, "unknown", "the vocabulary map could not be looked at", subject.drafter_unread)
    head, d2t, t2d = tensors.get("lm_head.weight"), tensors.get("d2t"), tensors.get("t2d")
    if head is not None and head.shape[:1] != (u,):
        title = f"lm_head is {list(head.shape)}, the draft vocabulary has {u} tokens"
        return _bad(subject, title, "the start ends while the drafter is loaded", _OTHER)
    if d2t is None:
        if u < v:
            title = f"the draft vocabulary has {u} of {v} tokens but there is no d2t"
            return _bad(subject, title, "nearly every draft names a wrong token")
        return finding(_ID, "pass", f"the draft vocabulary is the whole one, {v} tokens, and needs no map", _place(subject))
    if u == v and subject.facts.refuses_full_d2t:
        return _bad(
            subject,
            f"there is a d2t although the draft vocabulary is the whole one, {v} tokens",
            f"{subject.engine} has no parameter for it then: the start ends after the target is loaded",
            fix="take d2t and t2d out of the weights",
        )
    return _of_map(subject, d2t, t2d, u, v)


def _of_map(subject: Subject, d2t: TensorEntry, t2d: TensorEntry | None, u: int, v: int) -> Finding:
    if d2t.dtype != "I64" or d2t.shape != (u,):
        return _bad(subject, f"d2t is {shown(d2t.dtype)} {list(d2t.shape)}, not I64 [{u}]", "it cannot be loaded, or names wrong tokens")
    if not all(has_data(entry) for entry in (d2t, t2d) if entry is not None):
        return finding(_ID, "unknown", "the vocabulary map cannot be read: its file is cut off behind the header", str(d2t.file))
    offsets = read_int64(d2t)
    ids = [draft + offset for draft, offset in enumerate(offsets)]
    outside = next((draft for draft, target in enumerate(ids) if not 0 <= target < v), None)
    if outside is not None:
        absolute = " (d2t seems to hold the target's ids themselves)" if _are_ids(offsets, v) else ""
        title = f"d2t sends draft token {outside} to {ids[outside]}, outside the target's {v} tokens{absolute}"
        return _bad(subject, title, "drafts name wrong tokens, or the engine dies at the first request")
    if len(set(ids)) < u:
        return _bad(subject, f"d2t sends {u} draft tokens to only {len(set(ids))} tokens of the target", "drafts name wrong tokens")
    if t2d is not None and not _agree(t2d, ids, v):
        return _unlike_ours(subject, "d2t and t2d name different tokens", "engines go by d2t: right only if that is the right one")
    if any(later <= earlier for earlier, later in pairwise(ids)):
        return _unlike_ours(subject, "d2t names the target's tokens out of order", "right only if lm_head's rows are in the same order")
    return finding(_ID, "pass", f"d2t names {u} of the target's {v} tokens, each once, in order", _place(subject))


def _are_ids(numbers: Sequence[int], v: int) -> bool:
    return all(0 <= number < v for number in numbers) and len(set(numbers)) == len(numbers)


def _agree(t2d: TensorEntry, ids: list[int], v: int) -> bool:
    if t2d.shape != (v,) or t2d.dtype not in ("BOOL", "U8", "I8"):
        return False
    return {target for target, marked in enumerate(read_bytes(t2d)) if marked} == set(ids)


def _needs_key(subject: Subject) -> bool:
    loading = loading_of(subject, has_mla=has_mla(subject.drafter_config))
    return loading is not None and loading.needs_draft_vocab_size


def _unlike_ours(subject: Subject, title: str, effect: str) -> Finding:
    """What most engines take as it is; one that refuses what is missing goes through the whole folder, and refuses this too."""
    loading = subject.facts.loading
    refused = loading is not None and loading.missing == "refused"
    return _bad(subject, title, "the folder is refused" if refused else effect, verdict="fail" if refused else "warn")


def _bad(subject: Subject, title: str, effect: str, fix: str = _FIX, verdict: Verdict = "fail") -> Finding:
    return finding(_ID, verdict, title, _place(subject), effect=effect, fix=fix)


def _place(subject: Subject) -> str:
    return f"{subject.drafter_file}; weights in {subject.drafter_path}" if subject.drafter_path else subject.drafter_file


CHECK = Check(id=_ID, order=130, run=_run)
