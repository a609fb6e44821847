"""The learning rate."""

import math


def learning_rate(step: int, num_steps: int, peak: float, warmup_fraction: float) -> float:
    """Linear warm-up to `peak`, then a cosine to a twentieth of it. Steps count from 0."""
    warmup = max(1, round(num_steps * warmup_fraction))
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, num_steps - warmup)
    return peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))
