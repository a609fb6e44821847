"""Llama and the families that keep its names."""

from outrider.targets.family import TargetFamily

TARGET = TargetFamily(id="llama", model_types=("llama", "mistral", "phi3", "smollm3", "granite", "olmo2", "minicpm"))
