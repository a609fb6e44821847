"""Answers of the target to conversations, through any OpenAI-compatible server; resumable by row."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.core.errors import OutriderError
from outrider.core.files import write_atomically
from outrider.core.http import Completion, Question, Server
from outrider.core.journal import Journal
from outrider.core.names import ANSWERS_FILE
from outrider.core.progress import Track
from outrider.core.prompts import Conversation
from outrider.core.record import output_file
from outrider.core.results import AnswerSet
from outrider.targets.folder import TargetFolder


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn.

    Attributes:
        seed: row i uses seed + i, so that a row's answer does not depend on which others were asked.
    """

    max_tokens: int
    temperature: float
    concurrency: int
    seed: int = 0


Row = dict[str, Any]


Work = tuple[str, Callable[[], Awaitable[list[Row]]]]


async def gather_rows(label: str, journal: Journal, todo: Sequence[Work], concurrency: int) -> None:
    """Make the rows of each named item that the journal lacks, `concurrency` at a time.

    An item's rows are journalled together, so that a kill loses items in flight and repeats none.

    Raises:
        EngineFailed: the server refused or died; what was finished is in the journal.
    """
    done = {row["item"] for row in journal.rows}
    waiting = asyncio.Semaphore(concurrency)
    with Track(label, len(todo), "answers", done=sum(name in done for name, _ in todo)) as track:

        async def one(name: str, make: Callable[[], Awaitable[list[Row]]]) -> None:
            async with waiting:
                rows = await make()
            journal.append({"item": name, "rows": rows})
            track.advance(1)

        try:
            async with asyncio.TaskGroup() as group:
                for name, make in todo:
                    if name not in done:
                        group.create_task(one(name, make))
        except* (OutriderError, OSError) as failures:
            raise _first(failures) from None


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """One of the failures of a group: the others were cancelled or say the same."""
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def answer_all(
    label: str, server: Server, model: str, target: TargetFolder, conversations: Sequence[Conversation], folder: Path, sampling: Sampling
) -> AnswerSet:
    """Answer every turn of every conversation and write `folder/answers.jsonl`, in the order of the conversations.

    A row: id, messages, input_ids, loss_mask (1 on tokens that the target wrote), finish_reason, template_hash,
    temperature, and whether the ids are the server's own or its text's, tokenised again.

    Raises:
        EngineFailed: the server refused or died; what was finished is kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with Journal(folder / "answers.partial.jsonl") as journal:

        def make(number: int, conversation: Conversation) -> Callable[[], Awaitable[list[Row]]]:
            return lambda: answer(server, model, target, conversation, sampling, sampling.seed + number)

        todo = [(c.id, make(number, c)) for number, c in enumerate(conversations)]
        await gather_rows(label, journal, todo, sampling.concurrency)
        by_item = {entry["item"]: entry["rows"] for entry in journal.rows}
    rows = [row for conversation in conversations for row in by_item[conversation.id]]
    path = folder / ANSWERS_FILE
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    return summary(path, rows, folder)


def summary(path: Path, rows: Sequence[Row], folder: Path) -> AnswerSet:
    """Count what a file of answers holds."""
    answers = {tuple(i for i, own in zip(row["input_ids"], row["loss_mask"], strict=True) if own) for row in rows}
    return AnswerSet(
        file=output_file(path, folder),
        num_rows=len(rows),
        num_answer_tokens=sum(sum(row["loss_mask"]) for row in rows),
        num_distinct_answers=len(answers),
        num_finished=sum(row["finish_reason"] == "stop" for row in rows),
    )


async def answer(server: Server, model: str, target: TargetFolder, conversation: Conversation, sampling: Sampling, seed: int) -> list[Row]:
    """Answer each turn in its place; usually one row.

    If the template writes an earlier answer otherwise than the target did (some drop its reasoning), the tokens before
    are kept as a row of their own and a new one is begun: a row's tokens are always what the target has really seen.
    """
    rows: list[Row] = []
    texts: list[str] = []
    ids: list[int] = []
    mask: list[int] = []
    reason, source = "", ""
    for _ in conversation.turns:
        prompt = target.prompt_ids(conversation.messages(texts))
        if ids and prompt[: len(ids)] != ids:
            rows.append(_row(conversation, texts, ids, mask, reason, source, target, sampling, len(rows)))
            ids, mask = [], []
        mask = mask + [0] * (len(prompt) - len(ids))
        question = Question(model, prompt, sampling.max_tokens, sampling.temperature, seed)
        completion = await server.complete(question)
        own, source = answer_ids(target, completion)
        ids, mask, reason = [*prompt, *own], mask + [1] * len(own), completion.finish_reason
        texts.append(str(target.tokenizer.decode(own, skip_special_tokens=True)))
        if reason != "stop":
            break
    rows.append(_row(conversation, texts, ids, mask, reason, source, target, sampling, len(rows)))
    return rows


def answer_ids(target: TargetFolder, completion: Completion) -> tuple[list[int], str]:
    """The answer's ids with its end token, and where they come from: "engine", or "text" if it does not tell ids."""
    if completion.token_ids is not None:
        ids, source = list(completion.token_ids), "engine"
    else:
        ids, source = list(target.tokenizer(completion.text, add_special_tokens=False)["input_ids"]), "text"
    if completion.finish_reason == "stop" and (not ids or ids[-1] not in target.eos_token_ids):
        ids.append(target.eos_token_ids[0])
    return ids, source


def _row(
    conversation: Conversation,
    texts: list[str],
    ids: list[int],
    mask: list[int],
    reason: str,
    source: str,
    target: TargetFolder,
    sampling: Sampling,
    part: int,
) -> Row:
    messages = conversation.messages(texts)
    return {
        "id": conversation.id + (f"#{part}" if part else ""),
        "messages": messages[: -1 if messages[-1]["role"] == "user" else None],
        "input_ids": ids,
        "loss_mask": mask,
        "finish_reason": reason,
        "template_hash": target.template_hash,
        "temperature": sampling.temperature,
        "token_ids_from": source,
    }
