"""Engines that serve a target with a drafter beside it: one plug-in each; none is imported, all are started."""

SEAMS = (
    "asked",
    "asking",
    "counters",
    "engine",
    "environment",
    "environments",
    "facts",
    "gates",
    "known",
    "log_reader",
    "log_rules",
    "log_source",
    "root_cause",
    "serving",
    "watching",
)
