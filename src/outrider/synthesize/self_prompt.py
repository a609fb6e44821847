"""Self-prompting (Xu et al. 2024, "Magpie"): given only its chat template's opening, the target writes the user's turn."""

from pathlib import Path

from outrider.core.errors import InputError
from outrider.core.http import Question, Server
from outrider.core.journal import Journal
from outrider.core.prompts import Conversation
from outrider.synthesize.answers import Row, gather_rows
from outrider.targets.folder import TargetFolder

_MARK = "\ue000outrider\ue000"
_TEMPERATURE = 1.0
_MAX_TOKENS = 256
_MIN_WORDS = 3


def opening_ids(target: TargetFolder) -> list[int]:
    """The template up to where the user's words would begin.

    Raises:
        InputError: the template does not put the user's words in as they are.
    """
    text = target.render([{"role": "user", "content": _MARK}])
    if text.count(_MARK) != 1:
        raise InputError(
            "the chat template does not show where a user's turn begins",
            evidence=f"{target.path}: chat template",
            effect="the target cannot prompt itself",
            fix="give prompt files (synthesize.prompts)",
        )
    return target.ids(text[: text.index(_MARK)])


async def self_prompts(
    server: Server, model: str, target: TargetFolder, num_prompts: int, folder: Path, concurrency: int, seed: int
) -> list[Conversation]:
    """Let the target write `num_prompts` user turns; those cut off, too short or written before are left out.

    Resumable: finished ones are in `folder/self-prompts.partial.jsonl`.
    """
    if not num_prompts:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    opening = opening_ids(target)

    async def write(number: int) -> list[Row]:
        completion = await server.complete(Question(model, opening, _MAX_TOKENS, _TEMPERATURE, seed + number))
        return [{"text": completion.text, "finish_reason": completion.finish_reason}]

    with Journal(folder / "self-prompts.partial.jsonl") as journal:
        todo = [(f"self:{number}", lambda number=number: write(number)) for number in range(num_prompts)]
        await gather_rows("self-prompts", journal, todo, concurrency)
        written = {entry["item"]: entry["rows"][0] for entry in journal.rows}
    special = [token for token in target.tokenizer.all_special_tokens if token]
    kept: dict[str, Conversation] = {}
    for name, row in sorted(written.items(), key=lambda item: int(item[0].split(":")[1])):
        text = row["text"]
        for token in special:
            text = text.removesuffix(token)
        is_whole = row["finish_reason"] == "stop" and not any(token in text for token in special)
        if is_whole and len(text.split()) >= _MIN_WORDS:
            kept.setdefault(text.strip(), Conversation(id=name, system=None, turns=(text.strip(),)))
    return list(kept.values())
