"""The words that files, commands and packages share."""

from typing import Final

STAGES: Final = ("synthesize", "extract", "train", "export", "replay", "measure", "report")

ANSWERS_FILE: Final = "answers.jsonl"
MANIFEST_FILE: Final = "manifest.json"
TRAINING_RECORD_FILE: Final = "outrider.json"
METRICS_FILE: Final = "metrics.jsonl"
