"""Replay of what a drafting server has answered: the target's states over its answers, and the drafter on them.

Made of two verbs' parts, for the pipeline and for `outrider diagnose`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from outrider.core.errors import InputError
from outrider.core.files import read_jsonl, write_atomically
from outrider.core.names import ANSWERS_FILE, MANIFEST_FILE
from outrider.core.record import RunFolder
from outrider.core.results import Acceptance, Counted, MeasureResult, ReplayResult
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.drafters.loading import load_drafter
from outrider.drafters.replay import replay
from outrider.extract.stage import Capture, extract
from outrider.measure.arms import DRAFTED
from outrider.measure.stage import REPLIES_FILE
from outrider.store.documents import Store
from outrider.targets.folder import TargetFolder
from outrider.targets.model import TargetModel

_BATCH_TOKENS, _SHARD_TOKENS = 4096, 65536


def replay_answers(target: TargetFolder, drafter: Path, measured: Path, folder: Path, dtype: str = "float32") -> ReplayResult:
    """Replay a drafter on the answers of a measurement.

    Args:
        drafter: its folder; to find an integration fault, the sound one, not what was served.
        measured: a folder with measure.json and measure/replies.jsonl.
        folder: where the states are kept; a killed replay continues there.
        dtype: in which the target computes its states.

    Raises:
        InputError: no measurement there, or one of another target or template.
    """
    result = RunFolder(measured).result("measure", MeasureResult)
    if result.temperature != 0:
        return ReplayResult(
            num_speculative_tokens=result.num_speculative_tokens,
            sets={},
            missing=f"replay is of greedy decoding, and the answers were sampled at temperature {result.temperature:g}",
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loaded = load_drafter(drafter, target).to(device)
    model = TargetModel(target, getattr(torch, dtype), device, loaded.config.aux_layers)
    answers = _drafted_answers(measured / "measure" / REPLIES_FILE)
    sets = {}
    for name in result.sets:
        place = folder / name
        _write_answers(place / ANSWERS_FILE, target, answers[name])
        longest = max(len(row["prompt_ids"]) + len(row["token_ids"]) for row in answers[name].values())
        capture = Capture("float32", longest, _BATCH_TOKENS, _SHARD_TOKENS)
        extract(f"states of {name}", model, place / ANSWERS_FILE, place / "states", capture)
        sets[name] = replay_store(loaded, Store(place / "states"), target, result.num_speculative_tokens, result.max_tokens)
    return ReplayResult(num_speculative_tokens=result.num_speculative_tokens, sets=sets)


def replay_store(drafter: Eagle3Drafter, store: Store, target: TargetFolder, num_tokens: int, max_tokens: int) -> Counted:
    """Acceptance over all documents of a store of greedy answers.

    Raises:
        InputError: the store holds another target's states, or states of other layers than feed the drafter.
    """
    manifest, wanted = store.manifest, drafter.config.aux_layers
    if manifest.target_digest != target.digest:
        raise InputError("the store holds another target's states", evidence=f"{store.folder / MANIFEST_FILE}; {target.path}")
    if manifest.aux_layers != wanted:
        raise InputError(
            "the store holds states of other layers than feed this drafter",
            evidence=f"store {list(manifest.aux_layers)}, drafter {list(wanted)}",
            fix=f"extract with aux_layers = {list(wanted)}",
        )
    documents = (store[i] for i in range(len(store)))
    by_prompt = {d.id: replay(drafter, d, num_tokens, target.eos_token_ids, max_tokens) for d in documents}
    return Counted(total=sum(by_prompt.values(), Acceptance()), by_prompt=by_prompt)


def _drafted_answers(path: Path) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The drafting arm's replies by set and prompt; of a prompt asked twice, the later."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for number, row in read_jsonl(path, "the replies of the measurement"):
        try:
            if row["arm"] == DRAFTED and row["prompt_ids"] and row["token_ids"]:
                found.setdefault(row["set"], {})[row["prompt"]] = row
        except (KeyError, TypeError):
            raise InputError("a reply of the measurement lacks a part", evidence=f"{path}:{number}", fix="measure again") from None
    return found


def _write_answers(path: Path, target: TargetFolder, replies: Mapping[str, Mapping[str, Any]]) -> None:
    """The replies as rows that extraction reads."""
    rows = (
        {
            "id": prompt,
            "input_ids": [*reply["prompt_ids"], *reply["token_ids"]],
            "loss_mask": [0] * len(reply["prompt_ids"]) + [1] * len(reply["token_ids"]),
            "template_hash": target.template_hash,
        }
        for prompt, reply in replies.items()
    )
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
