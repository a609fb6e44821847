"""The loop: batches in, optimiser steps, held-out figures, checkpoints; a killed run goes on to the same curve."""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.core.config import TrainSection
from outrider.core.errors import InputError
from outrider.core.files import file_digest, value_digest, write_atomically
from outrider.core.journal import Journal
from outrider.core.names import MANIFEST_FILE, METRICS_FILE
from outrider.core.progress import Track
from outrider.core.record import output_file
from outrider.core.results import TrainResult
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.drafters.ttt import StepFigures, collate, ttt_loss
from outrider.formats.training import TrainingCheckpoint, load_training, save_training
from outrider.store.documents import Store
from outrider.targets.folder import TargetFolder
from outrider.targets.weights import lm_head_rows
from outrider.train.data import Split, answer_token_counts, coverage, draft_vocabulary, epoch_batches, split
from outrider.train.drafter import config_for, fresh, warm
from outrider.train.schedule import learning_rate

CHECKPOINT_FILE = "checkpoint.pt"


def train(store: Store, target: TargetFolder, settings: TrainSection, folder: Path, device: torch.device) -> TrainResult:
    """Train a drafter on a store; continues from `folder/checkpoint.pt` if that is of the same run.

    Raises:
        InputError: a store of another target, or a loss that is no longer finite (the last good checkpoint is kept).
    """
    return Trainer(store, target, settings, folder, device).run()


@dataclass
class _Progress:
    """Where training stands."""

    step: int = 0
    num_trained_tokens: int = 0


class Trainer:
    """One training run."""

    def __init__(self, store: Store, target: TargetFolder, settings: TrainSection, folder: Path, device: torch.device) -> None:
        if store.manifest.target_digest != target.digest:
            raise InputError(
                "the store holds another target's states", evidence=f"{store.folder}; {target.path}", fix="extract from this target"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self._store, self._target, self._settings, self._folder, self._device = store, target, settings, folder, device
        self._split: Split = split(store, settings.held_out_fraction, settings.seed)
        self._drafter = self._first_drafter().to(device)
        self._head = lm_head_rows(target, self._drafter.draft_vocab.cpu()).to(device)
        self._optimizer = torch.optim.AdamW(
            self._drafter.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=settings.weight_decay, fused=True
        )
        self._batches_per_epoch = len(self._epoch(0))
        planned = settings.epochs * self._batches_per_epoch
        self._num_steps = min(planned, settings.max_steps or planned)
        self._identity = value_digest(
            [file_digest(store.folder / MANIFEST_FILE), settings.model_dump(mode="json"), self._drafter.draft_vocab.tolist()]
        )
        self._progress = _Progress()

    def run(self) -> TrainResult:
        """Train to the end and write the last checkpoint."""
        self._resume()
        evaluate_every = max(1, self._num_steps // self._settings.evaluations)
        save_every = max(1, self._num_steps // self._settings.checkpoints)
        with self._metrics() as metrics, Track("train", self._num_steps, "steps", done=self._progress.step) as track:
            while self._progress.step < self._num_steps:
                figures = self._step()
                step = self._progress.step
                metrics.append(figures)
                track.advance(1, note=f"loss {figures['loss']:.3f}, accuracy {_shown(figures['accuracy_at'])}")
                if step % evaluate_every == 0 or step == self._num_steps:
                    metrics.append({"step": step, **self._held_out()})
                if step % save_every == 0 or step == self._num_steps:
                    self._save()
            steps = [row for row in metrics.rows if "loss" in row]
            held_out: dict[str, Any] = next((row for row in reversed(metrics.rows) if "held_out_loss" in row), {})
        counts = answer_token_counts(self._store, self._split.held_out, self._target.vocab_size)
        return TrainResult(
            checkpoint=output_file(self._folder / CHECKPOINT_FILE, self._folder),
            num_steps=self._num_steps,
            num_trained_tokens=self._progress.num_trained_tokens,
            held_out_loss=held_out.get("held_out_loss"),
            accuracy_at=tuple(held_out.get("held_out_accuracy_at", ())),
            vocab_coverage=coverage(counts, self._drafter.draft_vocab.cpu()),
            draft_vocab_size=self._drafter.config.draft_vocab_size,
            tok_per_s=_overall_rate(steps),
        )

    def _first_drafter(self) -> Eagle3Drafter:
        settings, manifest = self._settings, self._store.manifest
        if settings.init_from:
            return warm(settings.init_from, self._target, manifest)
        counts = answer_token_counts(self._store, self._split.training, self._target.vocab_size)
        vocabulary = draft_vocabulary(counts, settings.draft_vocab_size)
        size = self._target.vocab_size if vocabulary is None else len(vocabulary)
        config = config_for(self._target, manifest.aux_layers, size, settings.intermediate_size)
        return fresh(self._target, config, vocabulary, settings.seed)

    def _epoch(self, epoch: int) -> list[list[int]]:
        return epoch_batches(self._store, self._split.training, self._settings.batch_tokens, self._settings.seed, epoch)

    def _step(self) -> dict[str, Any]:
        """One optimiser step; returns its line of metrics."""
        started, settings = time.monotonic(), self._settings
        epoch, number = divmod(self._progress.step, self._batches_per_epoch)
        documents = [self._store[index] for index in self._epoch(epoch)[number]]
        rate = learning_rate(self._progress.step, self._num_steps, settings.learning_rate, settings.warmup_fraction)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        loss, figures = self._loss(documents)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise InputError(
                f"training diverged at step {self._progress.step}: the loss is {value}",
                evidence=f"learning rate {rate:.2g}",
                effect="nothing after the last checkpoint is kept",
                fix="lower train.learning_rate, or look at the data of this step",
            )
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self._drafter.parameters(), settings.grad_clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        num_tokens, seconds = sum(len(d) for d in documents), time.monotonic() - started
        self._progress = _Progress(self._progress.step + 1, self._progress.num_trained_tokens + num_tokens)
        return {
            "step": self._progress.step,
            "loss": value,
            "learning_rate": rate,
            "gradient_norm": float(norm),
            "num_tokens": num_tokens,
            "tok_per_s": num_tokens / seconds,
            "accuracy_at": _accuracy(figures),
        }

    def _loss(self, documents: list[Any]) -> tuple[Tensor, StepFigures]:
        batch = collate(documents, torch.float32, self._device)
        return ttt_loss(self._drafter, batch, self._head, self._settings.ttt_steps, self._settings.step_decay)

    @torch.no_grad()
    def _held_out(self) -> dict[str, Any]:
        """Loss and accuracy on the held-out documents; empty if none are held out."""
        total: StepFigures | None = None
        for batch in epoch_batches(self._store, self._split.held_out, self._settings.batch_tokens, self._settings.seed, 0):
            _, figures = self._loss([self._store[index] for index in batch])
            total = figures if total is None else total + figures
        if total is None or not int(total.num_supervised.sum()):
            return {}
        decay = self._settings.step_decay ** torch.arange(len(total.loss))
        loss = (total.loss.cpu() / total.num_supervised.cpu().clamp(min=1) * decay).sum()
        return {"held_out_loss": float(loss), "held_out_accuracy_at": _accuracy(total)}

    def _save(self) -> None:
        manifest = self._store.manifest
        record = {
            "target_digest": manifest.target_digest,
            "template_hash": manifest.template_hash,
            "aux_layers": list(manifest.aux_layers),
            "final_norm_applied": manifest.final_norm_applied,
            "num_trained_tokens": self._progress.num_trained_tokens,
        }
        optimizer = self._optimizer.state_dict()
        save_training(
            self._folder / CHECKPOINT_FILE,
            TrainingCheckpoint(self._drafter.checkpoint(), self._progress.step, optimizer, self._identity, record),
        )

    def _resume(self) -> None:
        path = self._folder / CHECKPOINT_FILE
        if not path.exists():
            return
        checkpoint = load_training(path)
        if checkpoint.identity != self._identity:
            raise InputError("the checkpoint is of another run", evidence=str(path), fix="choose another folder, or remove it")
        self._drafter.load_state_dict(checkpoint.drafter.tensors)
        self._optimizer.load_state_dict(checkpoint.optimizer)
        self._progress = _Progress(checkpoint.step, checkpoint.record["num_trained_tokens"])

    def _metrics(self) -> Journal:
        """metrics.jsonl, cut back to the checkpoint that training goes on from."""
        path = self._folder / METRICS_FILE
        with Journal(path) as journal:
            kept = [row for row in journal.rows if row["step"] <= self._progress.step]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        return Journal(path)


def _accuracy(figures: StepFigures) -> list[float]:
    """By step, the share of answer tokens that the drafter names; tokens outside its vocabulary count as missed.

    Ends at the first step at which no answer was long enough to be counted.
    """
    pairs = zip(figures.num_correct.tolist(), figures.num_answered.tolist(), strict=True)
    return [correct / answered for correct, answered in pairs if answered]


def _overall_rate(steps: list[dict[str, Any]]) -> float:
    """Tokens per second of all steps, whichever start made them."""
    return float(sum(row["num_tokens"] for row in steps) / sum(row["num_tokens"] / row["tok_per_s"] for row in steps))


def _shown(accuracy: list[float]) -> str:
    return " ".join(f"{a:.2f}" for a in accuracy)
