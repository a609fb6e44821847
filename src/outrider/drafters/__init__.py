"""Drafting algorithms, one file each; and replay, which needs no engine."""

SEAMS = ("algorithm", "distill_loss", "loading", "replay", "shape", "ttt")
