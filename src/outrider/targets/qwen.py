"""Qwen 2 and 3, dense and mixture of experts."""

from outrider.targets.family import TargetFamily

TARGET = TargetFamily(id="qwen", model_types=("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"))
