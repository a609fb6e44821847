"""DeepSeek V2 and V3 and Kimi K2, with MLA attention; K2.5 keeps the text model under `language_model.`."""

from outrider.targets.family import TargetFamily

TARGET = TargetFamily(
    id="deepseek", model_types=("deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25"), sglang_shift_depends_on_first_id=True
)
