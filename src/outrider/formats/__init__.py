"""Checkpoint layouts, one file each: how a drafter is written on disk for the engines that read that layout."""

SEAMS = ("checkpoint", "deepseek_eagle3_layout", "llama_eagle3_layout", "recognition", "safetensors_file", "training")
