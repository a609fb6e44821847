"""The stage: training answers, the target's own greedy answers to each measurement set, and what the two share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.core.errors import InputError
from outrider.core.http import Server
from outrider.core.prompts import first_turns, num_sharing_ngrams, read_prompts
from outrider.core.results import AnswerSet, OutputFile, SynthesizeResult
from outrider.synthesize.answers import Sampling, answer_all
from outrider.synthesize.self_prompt import self_prompts
from outrider.targets.folder import TargetFolder


@dataclass(frozen=True)
class Prompts:
    """What is to be answered.

    Attributes:
        files: prompt files to train on.
        num_prompts: take only so many of them, in order; None for all.
        num_self_prompts: user turns that the target writes itself, besides.
        measured: prompt sets to be measured on later, by name; their first turns are answered greedily.
        num_measured: prompts taken of each.
    """

    files: Sequence[Path]
    num_prompts: int | None
    num_self_prompts: int
    measured: Mapping[str, Path]
    num_measured: int


async def synthesize(
    server_url: str, target: TargetFolder, prompts: Prompts, sampling: Sampling, measured_max_tokens: int, folder: Path
) -> SynthesizeResult:
    """Make all answers below `folder`: training/answers.jsonl and measure-NAME/answers.jsonl.

    Raises:
        InputError: nothing to answer, or a prompt file that cannot be read; EngineFailed: the server died.
    """
    from_files = [c for file in prompts.files for c in read_prompts(file)][: prompts.num_prompts]
    measured = {name: first_turns(read_prompts(file), prompts.num_measured) for name, file in prompts.measured.items()}
    if not from_files and not prompts.num_self_prompts:
        raise InputError("there is nothing to answer", fix="set synthesize.prompts to prompt files, or synthesize.num_self_prompts")
    async with Server(server_url, max_connections=sampling.concurrency) as server:
        model = await server.model()
        own = await self_prompts(server, model, target, prompts.num_self_prompts, folder / "training", sampling.concurrency, sampling.seed)
        conversations = from_files + own
        training = await answer_all("training answers", server, model, target, conversations, folder / "training", sampling)
        greedy = Sampling(max_tokens=measured_max_tokens, temperature=0.0, concurrency=sampling.concurrency)
        answers: dict[str, AnswerSet] = {}
        for name, asked in measured.items():
            place = f"measure-{name}"
            answered = await answer_all(f"greedy answers to {name}", server, model, target, asked, folder / place, greedy)
            answers[name] = _below(answered, place)
    return SynthesizeResult(
        training=_below(training, "training").model_copy(update={"num_rejected_prompts": prompts.num_self_prompts - len(own)}),
        measurement=answers,
        shared_ngrams={name: num_sharing_ngrams(asked, conversations) for name, asked in measured.items()},
        template_hash=target.template_hash,
    )


def _below(answers: AnswerSet, folder: str) -> AnswerSet:
    file = answers.file
    return answers.model_copy(update={"file": OutputFile(path=f"{folder}/{file.path}", num_bytes=file.num_bytes, sha256=file.sha256)})
