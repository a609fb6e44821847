"""The whole job, on one page: ten stages, each made from the results before it.

preflight → synthesize → extract → train → export → preflight-export → measure → replay → diagnose → report
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from outrider.core.config import RunConfig
from outrider.core.errors import InputError
from outrider.core.files import file_digest, write_json
from outrider.core.names import STAGES
from outrider.core.prompts import Conversation, first_turns, num_sharing_ngrams, read_prompts
from outrider.core.record import RunFolder
from outrider.core.results import (
    DiagnoseResult,
    ExportResult,
    ExtractResult,
    Frozen,
    MeasureResult,
    PreflightResult,
    ReplayResult,
    ReportResult,
    SynthesizeResult,
    TrainResult,
)
from outrider.diagnose.stage import diagnose
from outrider.drafters.eagle3 import DRAFTER
from outrider.engines.engine import ServeSpec
from outrider.engines.environments import environment_for
from outrider.engines.facts import EngineFacts
from outrider.engines.gates import lifted_types, require_list, with_lifted
from outrider.engines.serving import engine_named, running
from outrider.export.stage import export
from outrider.extract.stage import Capture, extract
from outrider.formats.safetensors_file import SINGLE_FILE
from outrider.measure.arms import started
from outrider.measure.stage import REPLIES_FILE, Terms, measure
from outrider.preflight.planned import planned_config
from outrider.preflight.stage import preflight, require
from outrider.replaying import replay_answers
from outrider.report.stage import report
from outrider.store.documents import Store
from outrider.synthesize.answers import Sampling
from outrider.synthesize.stage import Prompts, answer_training
from outrider.targets.folder import TargetFolder
from outrider.targets.model import TargetModel
from outrider.train.trainer import train

R = TypeVar("R", bound=Frozen)
Say = Callable[[str], None]


class Pipeline:
    """One run of all stages.

    Args:
        config: what to do.
        run: where; results that are there already and fit are taken.
        say: told one line a stage.

    Raises:
        InputError: no such target, engine or environment.
    """

    def __init__(self, config: RunConfig, run: RunFolder, say: Say) -> None:
        self._config, self._run, self._say = config, run, say
        self._target = TargetFolder.open(config.target.path)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._engine = engine_named(config.engine.name)
        self._environment = environment_for(self._engine, config.engine.environment, config.engine.python)
        require_list(self._engine, self._environment, config.engine.lift_target_types)
        self._prompt_digests = {name: file_digest(_existing(path)) for name, path in config.measure.prompts.items()}

    def all_stages(self, until: str = STAGES[-1]) -> None:
        """Run the stages in order, up to and including `until`.

        Raises:
            OutriderError: whatever stopped a stage; what was finished is kept.
        """
        with self._run.locked():
            write_json(self._run.path / "run.json", self._config.model_dump(mode="json"))
            stages = (
                self.preflight_planned,
                self.synthesize,
                self.extract,
                self.train,
                self.export,
                self.preflight_export,
                self.measure,
                self.replay,
                self.diagnose,
                self.report,
            )
            for stage in stages[: STAGES.index(until) + 1]:
                stage()

    def preflight_planned(self) -> PreflightResult:
        """Whether the engine would take the drafter that this run is to make, before anything is paid for."""
        size = self._config.train.draft_vocab_size
        config = planned_config(self._target, self._layers, size, self._config.train.intermediate_size, self._config.export.dtype)

        def work(_: Path) -> PreflightResult:
            return preflight(self._target.path, config, self._facts(), self._config.engine.args)

        inputs = {"target": self._target.digest, "planned": config, "engine": self._engine_identity}
        return self._checked("preflight", inputs, work)

    def synthesize(self) -> SynthesizeResult:
        """The target's own answers to train on."""
        settings = self._config.synthesize

        def work(folder: Path) -> SynthesizeResult:
            sampling = Sampling(settings.max_tokens, settings.temperature, settings.concurrency, settings.seed)
            prompts = Prompts(settings.prompts, settings.num_prompts, settings.num_self_prompts)
            with self._plain_server(folder / "server.log") as url:
                training, asked = asyncio.run(answer_training(url, self._target, prompts, sampling, folder))
            shared = {name: num_sharing_ngrams(measured, asked) for name, measured in self._measured_prompts().items()}
            return SynthesizeResult(training=training, shared_ngrams=shared, template_hash=self._target.template_hash)

        inputs = {
            "target": self._target.digest,
            "template": self._target.template_hash,
            "engine": self._engine_identity,
            "settings": settings.model_dump(mode="json", exclude={"prompts", "concurrency"}),
            "prompts": [file_digest(_existing(path)) for path in settings.prompts],
            "measured": [self._prompt_digests, self._config.measure.num_prompts],
        }
        return self._stage("synthesize", inputs, SynthesizeResult, work)

    def extract(self) -> ExtractResult:
        """The target's states over its answers."""
        settings, answers = self._config.extract, self._result("synthesize", SynthesizeResult)

        def work(folder: Path) -> ExtractResult:
            model = TargetModel(self._target, getattr(torch, settings.compute_dtype), self._device, self._layers)
            capture = Capture(settings.dtype, settings.max_length, settings.batch_tokens, settings.shard_tokens)
            path = self._run.path / "synthesize" / answers.training.file.path
            training = extract("training states", model, path, folder / "training", capture)
            return ExtractResult(training=training, aux_layers=self._layers)

        inputs = {
            "target": self._target.digest,
            "answers": answers.training.file.sha256,
            "layers": self._layers,
            "settings": settings.model_dump(mode="json", exclude={"aux_layers", "batch_tokens"}),
        }
        return self._stage("extract", inputs, ExtractResult, work)

    def train(self) -> TrainResult:
        """The drafter."""
        settings, states = self._config.train, self._result("extract", ExtractResult)
        base = settings.init_from

        def work(folder: Path) -> TrainResult:
            store = Store((self._run.path / "extract" / states.training.manifest.path).parent)
            return train(store, self._target, settings, folder, self._device)

        inputs = {
            "store": states.training.manifest.sha256,
            "settings": settings.model_dump(mode="json"),
            "init_from": file_digest(_existing(base / SINGLE_FILE)) if base else None,
        }
        return self._stage("train", inputs, TrainResult, work)

    def export(self) -> ExportResult:
        """The folder that engines load: RUN/export/drafter."""
        settings, trained = self._config.export, self._result("train", TrainResult)

        def work(folder: Path) -> ExportResult:
            checkpoint = self._run.path / "train" / trained.checkpoint.path
            return export(checkpoint, self._target, folder / "drafter", settings.layer_names, settings.dtype, settings.engines)

        inputs = {"checkpoint": trained.checkpoint.sha256, "target": self._target.digest, "settings": settings.model_dump(mode="json")}
        return self._stage("export", inputs, ExportResult, work)

    def preflight_export(self) -> PreflightResult:
        """The same checks on the folder that was made, its tensors and vocabulary included."""
        exported = self._result("export", ExportResult)

        def work(_: Path) -> PreflightResult:
            return preflight(self._target.path, self._drafter_folder, self._facts(), self._config.engine.args)

        inputs = {"target": self._target.digest, "drafter": _digests(exported), "engine": self._engine_identity}
        return self._checked("preflight-export", inputs, work)

    def measure(self) -> MeasureResult:
        """The same prompts with and without the drafter, in the engine."""
        settings, exported = self._config.measure, self._result("export", ExportResult)
        if not settings.prompts:
            raise InputError("there is nothing to measure", fix="name prompt sets in [measure.prompts], the run's own workload first")

        def work(folder: Path) -> MeasureResult:
            terms = Terms(settings.max_tokens, settings.temperature, settings.concurrency, settings.num_speculative_tokens)
            spec = replace(self._spec(settings.concurrency), drafter=self._drafter_folder)
            arms = started(self._engine, self._environment, spec, folder)
            version = self._environment.version
            return measure(self._engine, version, arms, self._target, self._measured_prompts(), terms, folder)

        inputs = {
            "drafter": _digests(exported),
            "target": self._target.digest,
            "engine": [*self._engine_identity, self._config.engine.dtype],
            "prompts": self._prompt_digests,
            "settings": settings.model_dump(mode="json", exclude={"prompts"}),
        }
        return self._stage("measure", inputs, MeasureResult, work)

    def replay(self) -> ReplayResult:
        """Acceptance on the answers that the drafting server gave, from the target's own states: no engine."""
        exported, dtype = self._result("export", ExportResult), self._config.engine.dtype

        def work(folder: Path) -> ReplayResult:
            return replay_answers(self._target, self._drafter_folder, self._run.path, folder, dtype)

        replies = file_digest(self._run.path / "measure" / REPLIES_FILE)
        inputs = {"drafter": _digests(exported), "target": self._target.digest, "replies": replies, "dtype": dtype}
        return self._stage("replay", inputs, ReplayResult, work)

    def diagnose(self) -> DiagnoseResult:
        """Whether the engine accepts what the drafter's own numbers allow, and what follows."""
        measured, replayed = self._result("measure", MeasureResult), self._result("replay", ReplayResult)
        inputs = {name: file_digest(self._run.path / f"{name}.json") for name in ("measure", "replay")}
        return self._stage("diagnose", inputs, DiagnoseResult, lambda _: diagnose(measured, replayed))

    def report(self) -> ReportResult:
        """RUN/report/report.html."""
        made = {name: file_digest(path) for name in STAGES[:-1] if (path := self._run.path / f"{name}.json").exists()}
        return self._stage("report", {"results": made}, ReportResult, lambda folder: report(self._run, folder / "report.html"))

    @property
    def _drafter_folder(self) -> Path:
        return self._run.path / "export" / "drafter"

    @property
    def _layers(self) -> tuple[int, ...]:
        return self._config.extract.aux_layers or DRAFTER.default_aux_layers(self._target.num_layers)

    @property
    def _engine_identity(self) -> list[Any]:
        place, settings = self._environment, self._config.engine
        lifted = sorted({*settings.lift_target_types, *lifted_types(place)})
        return [self._engine.id, place.distribution, place.version, settings.threads, list(settings.args), *lifted]

    def _facts(self) -> EngineFacts:
        return with_lifted(self._engine.facts(self._environment), self._environment, self._config.engine.lift_target_types)

    def _measured_prompts(self) -> dict[str, list[Conversation]]:
        measured = self._config.measure
        return {name: first_turns(read_prompts(path), measured.num_prompts) for name, path in measured.prompts.items()}

    def _spec(self, max_batch: int) -> ServeSpec:
        serving, tokens = self._config.engine, self._config.measure.num_speculative_tokens
        threads, lifted = serving.threads, serving.lift_target_types
        return ServeSpec(self._target.path, None, tokens, serving.dtype, 0, max_batch, threads, serving.args, lifted)

    def _plain_server(self, log: Path) -> AbstractContextManager[str]:
        settings = self._config.synthesize
        return running(self._engine, self._environment, replace(self._spec(settings.concurrency), dtype=settings.dtype), log)

    def _checked(self, name: str, inputs: Mapping[str, Any], work: Callable[[Path], PreflightResult]) -> PreflightResult:
        """A preflight stops the run, when its findings are on disk."""
        result = self._stage(name, inputs, PreflightResult, work)
        require(result)
        return result

    def _stage(self, name: str, inputs: Mapping[str, Any], kind: type[R], work: Callable[[Path], R]) -> R:
        number = f"[{STAGES.index(name) + 1}/{len(STAGES)}] {name}"
        self._say(number)
        result, was_kept = self._run.stage(name, dict(inputs), kind, work)
        self._say(f"{number}: unchanged" if was_kept else f"{number}: done in {self._run.record(name).wall_s:.0f} s")
        return result

    def _result(self, name: str, kind: type[R]) -> R:
        return self._run.result(name, kind)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise InputError("a file that the run needs is missing", evidence=str(path), fix="check the path in run.toml")
    return path


def _digests(exported: ExportResult) -> list[str]:
    return [exported.weights.sha256, exported.config.sha256]
