"""Combinations of serve arguments that an engine refuses or changes, by version."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from packaging.version import Version

from outrider.core.results import Verdict
from outrider.preflight.captured import valued
from outrider.preflight.check import Subject
from outrider.preflight.plain_config import plain_config
from outrider.preflight.reading import shown
from outrider.preflight.versions import version_of

_ENDS: Final = "the server ends seconds after its start"
# vllm/v1/spec_decode: where parallel drafting looks for its token; versions before 0.20 know the first two
_MASK_TOKENS: Final = ("pard_token", "ptd_token_id", "mask_token_id", "dspark_noise_token_id", "dflash_config.mask_token_id")
_CHAINED: Final = ("eagle", "eagle3", "nextn", "standalone")


@dataclass(frozen=True)
class FlagRule:
    """One combination.

    Attributes:
        since: the first version that has the rule; empty for all.
        before: the first version that no longer has it; empty if all later ones do.
        found: what of the launch breaks it; empty if nothing does.
        place: where the engine says so.
    """

    engine: str
    since: str
    before: str
    found: Callable[[Subject], str]
    verdict: Verdict
    title: str
    effect: str
    fix: str
    place: str

    def holds_for(self, subject: Subject) -> bool:
        """Whether the engine's version has the rule."""
        version = version_of(subject.facts)
        is_in = (not self.since or version >= Version(self.since)) and (not self.before or version < Version(self.before))
        return subject.facts.engine == self.engine and is_in


def _number(value: Any) -> int | None:
    """A whole number, in whichever way it was given."""
    if isinstance(value, bool):
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _given(subject: Subject, key: str) -> int | None:
    return _number(subject.arguments.speculative.get(key))


def _no_tokens(subject: Subject) -> str:
    given = subject.arguments.speculative
    needs = subject.method in ("eagle", "eagle3", "dflash") and given.get("num_speculative_tokens") is None
    return "a speculative config without num_speculative_tokens" if given and needs else ""


def _too_few_tokens(subject: Subject) -> str:
    value = subject.arguments.speculative.get("num_speculative_tokens")
    tokens = _number(value)
    return f"num_speculative_tokens = {shown(value)}" if value is not None and (tokens is None or tokens <= 0) else ""


def _short_flags(subject: Subject) -> str:
    return ", ".join(f"--{name}" for name in ("spec-method", "spec-model", "spec-tokens") if name in subject.arguments.values)


def _other_type(subject: Subject) -> str:
    """An override of the type gets past a list of types, and past everything else that goes by it."""
    given = subject.arguments.values.get("hf-overrides", "")
    return f"--hf-overrides {shown(given)}" if "model_type" in given and subject.text_config.get("kv_lora_rank") else ""


def _tensor_parallel_key(subject: Subject) -> str:
    value = subject.arguments.speculative.get("tensor_parallel_size")
    return f"tensor_parallel_size = {shown(value)} in the speculative config" if value is not None else ""


def _draft_tensor_parallel(subject: Subject) -> str:
    size, target_size = _given(subject, "draft_tensor_parallel_size"), subject.arguments.number("tensor-parallel-size", 1)
    return f"{size} for the drafter, {target_size} for the target" if size not in (None, 1, target_size) else ""


def _draft_on_one(subject: Subject) -> str:
    size, target_size = _given(subject, "draft_tensor_parallel_size"), subject.arguments.number("tensor-parallel-size", 1)
    return f"1 for the drafter, {target_size} for the target" if size == 1 != target_size else ""


def _is_async(subject: Subject) -> bool:
    return subject.arguments.has("async-scheduling")


def _async(subject: Subject) -> str:
    return "--async-scheduling" if _is_async(subject) else ""


def _async_unpadded(subject: Subject) -> str:
    unpadded = subject.arguments.speculative.get("disable_padded_drafter_batch") is True
    return "--async-scheduling and disable_padded_drafter_batch" if _is_async(subject) and unpadded else ""


def _async_unpadded_v1(subject: Subject) -> str:
    return _async_unpadded(subject) if subject.runner == "V1" else ""


def _made_up(subject: Subject) -> str:
    given = subject.arguments.speculative
    keys = [key for key in ("synthetic_acceptance_length", "synthetic_acceptance_rates", "synthetic_acceptance_rate") if given.get(key)]
    if given.get("rejection_sample_method") == "synthetic":
        keys.append('rejection_sample_method = "synthetic"')
    return ", ".join(keys)


def _lower_case(subject: Subject) -> str:
    value = subject.arguments.speculative.get("algorithm")
    return f"--speculative-algorithm {shown(value)}" if isinstance(value, str) and value != value.upper() else ""


def _not_lower_case(subject: Subject) -> str:
    value = subject.arguments.speculative.get("method")
    return f'"method": {shown(value)}' if isinstance(value, str) and value != value.lower() else ""


def _no_mask_token(subject: Subject) -> str:
    """Parallel drafting feeds the drafter a token of its own for each position whose token is not known yet."""
    if subject.arguments.speculative.get("parallel_drafting") is not True or subject.method in ("dflash", "dspark"):
        return ""
    config = plain_config(subject)
    named = any(valued(config, key) is not None for key in _MASK_TOKENS)
    return "" if named else f"parallel_drafting, and a drafter's config with none of {', '.join(_MASK_TOKENS)}"


def _some_numbers(subject: Subject) -> str:
    """Steps decide: without them the others must be left out, with them the width must be given."""
    if subject.method not in _CHAINED or subject.arguments.has("speculative-adaptive"):
        return ""
    steps, width, tokens = (_given(subject, key) for key in ("num_steps", "eagle_topk", "num_draft_tokens"))
    given = f"num-steps {steps}, eagle-topk {width}, num-draft-tokens {tokens}".replace("None", "not given")
    if steps is None:
        return given if (width, tokens) != (None, None) else ""
    return given if width is None or (width > 1 and tokens is None) else ""


def _other_num_tokens(subject: Subject) -> str:
    steps, width, tokens = (_given(subject, key) for key in ("num_steps", "eagle_topk", "num_draft_tokens"))
    if subject.method not in _CHAINED or steps is None or width != 1 or tokens in (None, steps + 1):
        return ""
    return f"num-steps {steps}, eagle-topk 1, num-draft-tokens {tokens}"


def _tree(subject: Subject) -> bool:
    return subject.method in _CHAINED and (_given(subject, "eagle_topk") or 1) > 1


def _tree_on_trtllm(subject: Subject) -> str:
    keys = ("attention-backend", "decode-attention-backend", "prefill-attention-backend")
    named = next((key for key in keys if subject.arguments.values.get(key) == "trtllm_mha"), None)
    return f"eagle-topk above 1 and --{named} trtllm_mha" if named and _tree(subject) else ""


def _paged_tree(*backends: str) -> Callable[[Subject], str]:
    """A tree of drafts on pages of several tokens, which only some attention back-ends can do."""

    def found(subject: Subject) -> str:
        page, backend = _number(subject.arguments.values.get("page-size")), subject.arguments.values.get("attention-backend")
        if not _tree(subject) or page is None or page <= 1 or backend is None or backend in backends:
            return ""
        return f"eagle-topk above 1, --page-size {page}, --attention-backend {shown(backend)}"

    return found


def _refused(engine: str, since: str, before: str, found: Callable[[Subject], str], title: str, fix: str, place: str) -> FlagRule:
    return FlagRule(engine, since, before, found, "fail", title, _ENDS, fix, place)


_SPECULATIVE: Final = "vllm/config/speculative.py (vllm/config.py and vllm/config/__init__.py before 0.11)"
_HOOK: Final = "sglang/srt/arg_groups/speculative_hook.py (sglang/srt/server_args.py before 0.5.13)"
_PAGED: Final = "a tree of drafts needs pages of one token on this attention back-end"

FLAG_RULES: Final = (
    _refused("vllm", "", "", _no_tokens, "how many tokens to draft is not said", "num_speculative_tokens", _SPECULATIVE),
    _refused(
        "vllm", "", "", _too_few_tokens, "the number of tokens to draft is not above 0", "num_speculative_tokens above 0", _SPECULATIVE
    ),
    _refused(
        "vllm",
        "",
        "",
        _not_lower_case,
        "the method has to be written in small letters",
        "the method in small letters, e.g. eagle3",
        f"{_SPECULATIVE} SpeculativeMethod",
    ),
    _refused(
        "vllm",
        "0.16.0",
        "",
        _no_mask_token,
        "the drafter was not made to draft in parallel",
        "leave parallel_drafting out, or a P-EAGLE drafter",
        "vllm/v1/spec_decode/llm_base_proposer.py _init_parallel_drafting_params (eagle.py in older versions)",
    ),
    _refused(
        "vllm",
        "",
        "0.22.0",
        _short_flags,
        "there are no short arguments of speculation",
        "--speculative-config, or vllm 0.22.0 or later",
        "vllm/engine/arg_utils.py",
    ),
    _refused(
        "vllm",
        "0.15.0",
        "",
        _tensor_parallel_key,
        "tensor_parallel_size is no key of a speculative config",
        "draft_tensor_parallel_size",
        _SPECULATIVE,
    ),
    _refused(
        "vllm",
        "",
        "",
        _draft_tensor_parallel,
        "the drafter's tensor parallel size is neither 1 nor the target's",
        "leave draft_tensor_parallel_size out",
        f"{_SPECULATIVE} _verify_and_get_draft_tp",
    ),
    FlagRule(
        "vllm",
        "",
        "",
        _draft_on_one,
        "warn",
        "the drafter is not put on one device alone",
        "the drafter is cut like the target all the same (vllm-project/vllm issues 31345 and 31886)",
        "leave draft_tensor_parallel_size out",
        _SPECULATIVE,
    ),
    _refused(
        "vllm",
        "0.10.0",
        "0.11.1",
        _async,
        "async scheduling and speculation exclude each other",
        "leave --async-scheduling out",
        "vllm/engine/arg_utils.py",
    ),
    _refused(
        "vllm",
        "0.11.1",
        "0.33.0",
        _async_unpadded,
        "async scheduling needs padded batches of drafts",
        "leave one of the two out",
        "vllm/config/vllm.py",
    ),
    _refused(
        "vllm",
        "0.33.0",
        "",
        _async_unpadded_v1,
        "async scheduling of the V1 model runner needs padded batches of drafts",
        "leave one of the two out",
        "vllm/config/vllm.py",
    ),
    FlagRule(
        "vllm",
        "",
        "",
        _other_type,
        "warn",
        "the target's model_type is overridden",
        "whether its attention is latent is told by that type: with another one it is run without, and needs many times the memory",
        "lift the list of target types instead: `outrider engine gate lift`",
        "vllm/transformers_utils/model_arch_config_convertor.py is_deepseek_mla (vllm/config/model.py in older versions)",
    ),
    FlagRule(
        "vllm",
        "0.18.0",
        "",
        _made_up,
        "warn",
        "the acceptance of this launch is made up",
        "speeds are those of a made-up drafter, and answers are wrong",
        "leave it out, unless a ceiling of the speed is wanted",
        _SPECULATIVE,
    ),
    _refused(
        "sglang",
        "",
        "0.5.12",
        _lower_case,
        "the algorithm has to be written in capitals",
        "the algorithm in capitals, e.g. EAGLE3",
        "sglang/srt/server_args.py",
    ),
    _refused(
        "sglang",
        "",
        "",
        _some_numbers,
        "of steps, width and number of draft tokens only some are given",
        "--speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens: all three, or none",
        _HOOK,
    ),
    FlagRule(
        "sglang",
        "",
        "",
        _other_num_tokens,
        "warn",
        "the number of draft tokens is not the steps plus one",
        "the engine takes steps + 1 instead",
        "--speculative-num-draft-tokens = --speculative-num-steps + 1",
        _HOOK,
    ),
    _refused("sglang", "", "", _tree_on_trtllm, "trtllm_mha drafts no trees", "--speculative-eagle-topk 1, or another back-end", _HOOK),
    _refused("sglang", "", "0.5.6", _paged_tree("flashinfer"), _PAGED, "--page-size 1, or flashinfer", _HOOK),
    _refused("sglang", "0.5.6", "0.5.13", _paged_tree("flashinfer", "fa3"), _PAGED, "--page-size 1, flashinfer or fa3", _HOOK),
    _refused("sglang", "0.5.13", "", _paged_tree("flashinfer", "fa3", "triton"), _PAGED, "--page-size 1, flashinfer, fa3 or triton", _HOOK),
)
