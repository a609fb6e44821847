"""The words that files, commands and packages share."""

from typing import Final

STAGES: Final = (
    "preflight",  # of the planned drafter
    "synthesize",
    "extract",
    "train",
    "export",
    "preflight-export",  # of the folder that was made
    "measure",
    "replay",
    "diagnose",
    "report",
)

ANSWERS_FILE: Final = "answers.jsonl"
MANIFEST_FILE: Final = "manifest.json"
TRAINING_RECORD_FILE: Final = "outrider.json"
METRICS_FILE: Final = "metrics.jsonl"
