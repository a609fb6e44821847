"""The whole job, on one page: seven stages, each made from the results before it.

synthesize → extract → train → export → replay → measure → report
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import torch

from outrider.core.config import RunConfig
from outrider.core.errors import InputError
from outrider.core.files import file_digest, write_json
from outrider.core.names import MANIFEST_FILE, STAGES
from outrider.core.prompts import Conversation, first_turns, num_sharing_ngrams, read_prompts
from outrider.core.record import RunFolder
from outrider.core.results import (
    Acceptance,
    ExportResult,
    ExtractResult,
    Frozen,
    MeasureResult,
    ReplayResult,
    ReportResult,
    SynthesizeResult,
    TrainResult,
)
from outrider.drafters.eagle3 import DRAFTER, Eagle3Drafter
from outrider.drafters.loading import load_drafter
from outrider.drafters.replay import replay
from outrider.engines.engine import ServeSpec
from outrider.engines.serving import engine_named, running
from outrider.export.stage import export
from outrider.extract.stage import Capture, extract
from outrider.formats.safetensors_file import SINGLE_FILE
from outrider.measure.stage import DRAFTED, PLAIN, Arm, Terms, measure
from outrider.report.stage import report
from outrider.store.documents import Store
from outrider.synthesize.answers import Sampling
from outrider.synthesize.stage import Prompts, answer_measured, answer_training
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
    """

    def __init__(self, config: RunConfig, run: RunFolder, say: Say) -> None:
        self._config, self._run, self._say = config, run, say
        self._target = TargetFolder.open(config.target.path)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._engine = engine_named(config.engine.name)
        self._prompt_digests = {name: file_digest(_existing(path)) for name, path in config.measure.prompts.items()}

    def all_stages(self, until: str = STAGES[-1]) -> None:
        """Run the stages in order, up to and including `until`.

        Raises:
            OutriderError: whatever stopped a stage; what was finished is kept.
        """
        with self._run.locked():
            write_json(self._run.path / "run.json", self._config.model_dump(mode="json"))
            stages = (self.synthesize, self.extract, self.train, self.export, self.replay, self.measure, self.report)
            for stage in stages[: STAGES.index(until) + 1]:
                stage()

    def synthesize(self) -> SynthesizeResult:
        """The target's own answers: to train on, and greedily to what will be measured."""
        settings, measured, serving = self._config.synthesize, self._config.measure, self._config.engine

        def work(folder: Path) -> SynthesizeResult:
            sampling = Sampling(settings.max_tokens, settings.temperature, settings.concurrency, settings.seed)
            greedy = Sampling(measured.max_tokens, temperature=0.0, concurrency=settings.concurrency)
            prompts = Prompts(settings.prompts, settings.num_prompts, settings.num_self_prompts)
            sets = self._measured_prompts()
            with self._server(None, folder / "server.log", settings.concurrency, settings.dtype) as url:
                training, asked = asyncio.run(answer_training(url, self._target, prompts, sampling, folder))
            # what replay and the engine will say alike is answered in the precision that is measured
            with self._server(None, folder / "server-measured.log", settings.concurrency) as url:
                answers = asyncio.run(answer_measured(url, self._target, sets, greedy, folder))
            shared = {name: num_sharing_ngrams(prompts, asked) for name, prompts in sets.items()}
            return SynthesizeResult(training=training, measurement=answers, shared_ngrams=shared, template_hash=self._target.template_hash)

        inputs = {
            "target": self._target.digest,
            "template": self._target.template_hash,
            "engine": [serving.name, self._engine.version(), serving.dtype],
            "settings": settings.model_dump(mode="json", exclude={"prompts", "concurrency"}),
            "prompts": [file_digest(_existing(path)) for path in settings.prompts],
            "measured": [self._prompt_digests, measured.num_prompts, measured.max_tokens],
        }
        return self._stage("synthesize", inputs, SynthesizeResult, work)

    def extract(self) -> ExtractResult:
        """The target's states; those to be replayed in float32, as they came."""
        settings, answers = self._config.extract, self._result("synthesize", SynthesizeResult)
        layers = settings.aux_layers or DRAFTER.default_aux_layers(self._target.num_layers)
        place = self._run.path / "synthesize"

        def work(folder: Path) -> ExtractResult:
            model = TargetModel(self._target, getattr(torch, settings.compute_dtype), self._device, layers)
            capture = Capture(settings.dtype, settings.max_length, settings.batch_tokens, settings.shard_tokens)
            training = extract("training states", model, place / answers.training.file.path, folder / "training", capture)
            if answers.measurement and settings.compute_dtype != self._config.engine.dtype:
                model = TargetModel(self._target, getattr(torch, self._config.engine.dtype), self._device, layers)
            exact = Capture("float32", settings.max_length, settings.batch_tokens, settings.shard_tokens)
            stores = {
                name: extract(f"states of {name}", model, place / found.file.path, folder / f"measure-{name}", exact)
                for name, found in answers.measurement.items()
            }
            return ExtractResult(training=training, measurement=stores, aux_layers=layers)

        inputs = {
            "target": self._target.digest,
            "answers": answers.training.file.sha256,
            "measured": {name: found.file.sha256 for name, found in answers.measurement.items()},
            "layers": layers,
            "engine dtype": self._config.engine.dtype,
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

    def replay(self) -> ReplayResult:
        """Acceptance on the measured prompts, from stored states and the target's own tokens: no engine."""
        measured, states = self._config.measure, self._result("extract", ExtractResult)
        exported = self._result("export", ExportResult)

        def work(_: Path) -> ReplayResult:
            drafter = load_drafter(self._drafter_folder, self._target).to(self._device)
            sets = {}
            for name, found in states.measurement.items():
                store = Store((self._run.path / "extract" / found.manifest.path).parent)
                sets[name] = replay_store(drafter, store, self._target, measured.num_speculative_tokens, measured.max_tokens)
            return ReplayResult(num_speculative_tokens=measured.num_speculative_tokens, sets=sets)

        inputs = {
            "drafter": exported.weights.sha256,
            "stores": {name: found.manifest.sha256 for name, found in states.measurement.items()},
            "settings": [measured.num_speculative_tokens, measured.max_tokens],
        }
        return self._stage("replay", inputs, ReplayResult, work)

    def measure(self) -> MeasureResult:
        """The same prompts with and without the drafter, in the engine."""
        settings, exported = self._config.measure, self._result("export", ExportResult)
        if not settings.prompts:
            raise InputError("there is nothing to measure", fix="name prompt sets in [measure.prompts], the run's own workload first")

        def work(folder: Path) -> MeasureResult:
            terms = Terms(settings.max_tokens, settings.temperature, settings.concurrency, settings.num_speculative_tokens)
            with (
                self._server(None, folder / f"{PLAIN}.log", settings.concurrency) as plain,
                self._server(self._drafter_folder, folder / f"{DRAFTED}.log", settings.concurrency) as drafted,
            ):
                arms = [Arm(PLAIN, plain), Arm(DRAFTED, drafted)]
                return asyncio.run(measure(self._engine, arms, self._target, self._measured_prompts(), terms, folder))

        inputs = {
            "drafter": [exported.weights.sha256, exported.config.sha256],
            "target": self._target.digest,
            "engine": [self._config.engine.name, self._engine.version(), self._config.engine.dtype],
            "prompts": self._prompt_digests,
            "settings": settings.model_dump(mode="json", exclude={"prompts"}),
        }
        return self._stage("measure", inputs, MeasureResult, work)

    def report(self) -> ReportResult:
        """RUN/report/report.html."""
        made = {name: file_digest(path) for name in STAGES[:-1] if (path := self._run.path / f"{name}.json").exists()}
        return self._stage("report", {"results": made}, ReportResult, lambda folder: report(self._run, folder / "report.html"))

    @property
    def _drafter_folder(self) -> Path:
        return self._run.path / "export" / "drafter"

    def _measured_prompts(self) -> dict[str, list[Conversation]]:
        measured = self._config.measure
        return {name: first_turns(read_prompts(path), measured.num_prompts) for name, path in measured.prompts.items()}

    def _server(self, drafter: Path | None, log: Path, max_batch: int, dtype: str | None = None) -> AbstractContextManager[str]:
        serving, tokens = self._config.engine, self._config.measure.num_speculative_tokens
        spec = ServeSpec(self._target.path, drafter, tokens, dtype or serving.dtype, port=0, max_batch=max_batch, threads=serving.threads)
        return running(self._engine, spec, log)

    def _stage(self, name: str, inputs: Mapping[str, Any], kind: type[R], work: Callable[[Path], R]) -> R:
        number = f"[{STAGES.index(name) + 1}/{len(STAGES)}] {name}"
        self._say(number)
        result, was_kept = self._run.stage(name, dict(inputs), kind, work)
        self._say(f"{number}: unchanged" if was_kept else f"{number}: done in {self._run.record(name).wall_s:.0f} s")
        return result

    def _result(self, name: str, kind: type[R]) -> R:
        return self._run.result(name, kind)


def replay_store(drafter: Eagle3Drafter, store: Store, target: TargetFolder, num_tokens: int, max_tokens: int) -> Acceptance:
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
    parts = (replay(drafter, store[i], num_tokens, target.eos_token_ids, max_tokens) for i in range(len(store)))
    return sum(parts, Acceptance())


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise InputError("a file that the run needs is missing", evidence=str(path), fix="check the path in run.toml")
    return path
