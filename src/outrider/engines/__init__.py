"""Engines that serve a target with a drafter beside it: one plug-in each; none is imported, all are started."""

SEAMS = ("asked", "counters", "engine", "environment", "environments", "facts", "gates", "known", "root_cause", "serving", "watching")
