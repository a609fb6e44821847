"""Whether the target can be asked in its own chat format, and the drafter speaks of the same tokens."""

from pathlib import Path
from typing import Final

from outrider.core.errors import InputError
from outrider.core.results import Finding
from outrider.preflight.check import Check, Subject, finding, whole
from outrider.preflight.reading import eos_token_ids, read_object, shown, token_ids

_ID = "tokenizer"
_FILES: Final = (("tokenizer.json",), ("tokenizer.model",), ("tiktoken.model",), ("vocab.json", "merges.txt"), ("tekken.json",))
_TEMPLATES: Final = ("chat_template.jinja", "chat_template.json")


def _run(subject: Subject) -> Finding:
    v, mine = whole(subject.text_config, "vocab_size"), whole(subject.drafter_config, "vocab_size")
    if v is not None and mine is not None and v != mine:
        return finding(
            _ID,
            "fail",
            f"the drafter is for a vocabulary of {mine} tokens, the target's has {v}",
            f"{subject.drafter_file}; {subject.target_file}",
            effect="token ids mean different tokens, or the start ends",
            fix="a drafter for this target",
        )
    return _of_target(subject) or _of_special_tokens(subject) or _sizes_unknown(subject, v, mine) or _sound(subject, v)


def _of_target(subject: Subject) -> Finding | None:
    folder = subject.target_path
    if not any(all((folder / name).is_file() for name in names) for names in _FILES):
        if subject.target_tensors is None:
            return finding(_ID, "unknown", "the target's folder holds neither weights nor a tokenizer", str(folder))
        return finding(
            _ID,
            "fail",
            "the target has no tokenizer",
            str(folder),
            expected=", ".join(" and ".join(names) for names in _FILES),
            effect="the server ends seconds after its start",
            fix="fetch the tokenizer's files of the target",
        )
    try:
        known = _has_template(folder)
    except InputError as error:
        return finding(_ID, "unknown", f"{error.what}: whether there is a chat template cannot be told", error.evidence)
    if known:
        return None
    return finding(
        _ID,
        "warn",
        "the target has no chat template",
        str(folder),
        expected=", ".join(_TEMPLATES),
        effect="chats are refused, and drafters cannot be trained on the target's own answers",
        fix="add chat_template.jinja to the folder",
    )


def _has_template(folder: Path) -> bool:
    if any((folder / name).is_file() for name in _TEMPLATES):
        return True
    path = folder / "tokenizer_config.json"
    return path.is_file() and bool(read_object(path, "the tokenizer's config").get("chat_template"))


def _of_special_tokens(subject: Subject) -> Finding | None:
    """Engines go by the target's; a drafter that has others was made for another target, or for another version of it."""
    try:
        ends = eos_token_ids(subject.target_path, subject.text_config)
    except InputError as error:
        return finding(_ID, "unknown", f"{error.what}: what ends the target's answers cannot be told", error.evidence)
    pairs = (
        ("eos_token_id", {*ends, *token_ids(subject.text_config.get("eos_token_id"))}),
        ("bos_token_id", {*token_ids(subject.text_config.get("bos_token_id"))}),
    )
    for key, of_target in pairs:
        of_drafter = token_ids(subject.drafter_config.get(key))
        if of_target and of_drafter and not of_target.intersection(of_drafter):
            return finding(
                _ID,
                "warn",
                f"{key} of the drafter is not the target's",
                f"{subject.drafter_file}; {subject.target_path}",
                found=shown(of_drafter),
                expected=shown(sorted(of_target)),
                effect="the drafter may be for another target, or for another version of it",
                fix="a drafter for this target, or the target's id in its config",
            )
    return None


def _sizes_unknown(subject: Subject, v: int | None, mine: int | None) -> Finding | None:
    if v is not None and mine is not None:
        return None
    place = subject.drafter_file if mine is None else subject.target_file
    return finding(_ID, "unknown", "the config does not say how large the vocabulary is", place)


def _sound(subject: Subject, v: int | None) -> Finding:
    place = f"{subject.target_path}; {subject.drafter_file}"
    return finding(_ID, "pass", f"tokenizer and chat template are there, and both speak of {v} tokens", place)


CHECK = Check(id=_ID, order=150, run=_run, of_version=False)
