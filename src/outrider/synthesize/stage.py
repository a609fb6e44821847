"""The stage: the target's own answers to train on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.core.errors import InputError
from outrider.core.http import Server
from outrider.core.prompts import Conversation, read_prompts
from outrider.core.results import AnswerSet, OutputFile
from outrider.synthesize.answers import Sampling, answer_all
from outrider.synthesize.self_prompt import self_prompts
from outrider.targets.folder import TargetFolder

_TRAINING = "training"


@dataclass(frozen=True)
class Prompts:
    """What is to be answered for training.

    Attributes:
        files: prompt files.
        num_prompts: take only so many of them, in order; None for all.
        num_self_prompts: user turns that the target writes itself, besides.
    """

    files: Sequence[Path]
    num_prompts: int | None
    num_self_prompts: int


async def answer_training(
    server_url: str, target: TargetFolder, prompts: Prompts, sampling: Sampling, folder: Path
) -> tuple[AnswerSet, list[Conversation]]:
    """Make `folder/training/answers.jsonl`; returns what it holds, and the conversations asked.

    Raises:
        InputError: nothing to answer, or a prompt file that cannot be read; EngineFailed: the server died.
    """
    from_files = [c for file in prompts.files for c in read_prompts(file)][: prompts.num_prompts]
    if not from_files and not prompts.num_self_prompts:
        raise InputError("there is nothing to answer", fix="set synthesize.prompts to prompt files, or synthesize.num_self_prompts")
    if len({c.id for c in from_files}) != len(from_files):
        raise InputError(
            "two prompt files have the same name", evidence=", ".join(map(str, prompts.files)), fix="rename one: rows are named after it"
        )
    place = folder / _TRAINING
    async with Server(server_url, max_connections=sampling.concurrency) as server:
        model = await server.model()
        own = await self_prompts(server, model, target, prompts.num_self_prompts, place, sampling.concurrency, sampling.seed)
        conversations = from_files + own
        answers = await answer_all("training answers", server, model, target, conversations, place, sampling)
    rejected = prompts.num_self_prompts - len(own)
    return _below(answers, _TRAINING).model_copy(update={"num_rejected_prompts": rejected}), conversations


def _below(answers: AnswerSet, folder: str) -> AnswerSet:
    file = answers.file
    return answers.model_copy(update={"file": OutputFile(path=f"{folder}/{file.path}", num_bytes=file.num_bytes, sha256=file.sha256)})
