"""Lines of vLLM's log that are no failure and yet matter, 0.9.2 to 0.33.0."""

from typing import Final

from outrider.engines.log_rules import NoteRule

_LAYERS_EFFECT: Final = "other layers than the drafter was trained on: acceptance near nothing"
_SHARED_EFFECT: Final = "right if the drafter was trained on the target's own, as most are"

NOTES: Final = (
    NoteRule(
        "draft-length",
        "Overriding draft model max model len from ",  # 0.21 and later
        r"^Overriding draft model max model len from (\d+) to (\d+)",
        "the drafter drafts up to {1} tokens (its config says {0})",
        "requests longer than that are served without drafts, in runner V1 with the whole batch they are in",
    ),
    NoteRule(
        "draft-length",
        "Overriding draft model max_position_embeddings from ",
        r"^Overriding draft model max_position_embeddings from (\d+) to the target model's max_model_len \((\d+)\)",
        "the drafter's positions are taken to reach {1} instead of {0}",
        "it drafts where it was not trained: acceptance may fall in long requests",
    ),
    NoteRule(
        "length-reduced",
        "can't skip speculation for longer sequences",
        r"^The draft model's max_model_len \((\d+)\) is smaller than the target model's \((\d+)\).*reducing max_model_len to (\d+)",
        "requests are limited to {2} tokens, because the drafter stops there (the target at {1})",
        "longer requests are refused",
        "the target's max_position_embeddings in the drafter's config, if it was trained so far",
    ),
    NoteRule(
        "aux-layers-from-config",
        "Using auxiliary layers from speculative config: ",
        r"^Using auxiliary layers from speculative config: (.+)",
        "the drafter reads the target's states after layers {0}, as its config says",
    ),
    NoteRule(
        "aux-layers-from-config",
        "Using Eagle3 auxiliary layers from config: ",
        r"^Using Eagle3 auxiliary layers from config: (.+)",
        "the drafter reads the target's states after layers {0}, as its config says",
    ),
    NoteRule(
        "aux-layers-by-default",
        "Using Eagle3 auxiliary layers from model: ",
        r"^Using Eagle3 auxiliary layers from model: (.+)",
        "the drafter reads the target's states after layers {0}: its config does not say which, so the target's default holds",
        _LAYERS_EFFECT,
        "the layers it was trained on into its config (eagle_aux_hidden_state_layer_ids)",
    ),
    NoteRule(
        "embeddings-shared",
        "Sharing target model ",
        r"^Detected (?:EAGLE|MTP) model.* Sharing target model (embedding|lm_head) weights with the draft model",
        "the drafter uses the target's {0} weights",
        _SHARED_EFFECT,
    ),
    NoteRule(
        "embeddings-shared",
        "Assuming the EAGLE head shares the same vocab embedding",  # until 0.11.0
        r"^Assuming the EAGLE head shares the same vocab embedding",
        "the drafter uses the target's embedding weights",
        _SHARED_EFFECT,
    ),
    NoteRule(
        "embeddings-shared",
        "Loading EAGLE LM head weights from the target model",  # until 0.11.0
        r"^Loading EAGLE LM head weights from the target model",
        "the drafter uses the target's lm_head weights",
        _SHARED_EFFECT,
    ),
    NoteRule(
        "embeddings-kept",
        "Keeping separate ",
        r"^Detected EAGLE model with distinct \w+ weights\. Keeping separate (embedding|lm_head) weights from the target model",
        "the drafter uses {0} weights of its own",
    ),
    NoteRule(
        "embeddings-kept",
        "will be loaded separately",
        r"^The (?:EAGLE head|draft model)'s (vocab embedding|lm_head) will be loaded separately from the target model",
        "the drafter uses a {0} of its own",
    ),
    NoteRule("runner-v2", "Using V2 Model Runner", r"^Using V2 Model Runner", "model runner V2 serves"),  # 0.16 and later
    NoteRule(
        "runner-v1",
        "using the V1 model runner instead",  # 0.23 and later
        r"^Model Runner V2 (.+); using the V1 model runner instead",
        "model runner V1 serves, because V2 {0}",
        "which drafters it takes, which layers it reads by default, and how it treats long requests differ between the two",
    ),
    NoteRule(
        "attention-backend",
        " attention backend",
        r"^Using (?:AttentionBackendEnum\.)?(\w+) attention backend(?: out of potential backends|\.)",  # 0.12 and later
        "attention by {0}",
    ),
    NoteRule(
        "attention-backend",
        " backend on V1 engine",  # until 0.11
        r"^Using ([\w ]+?) backend on V1 engine",
        "attention by {0}",
    ),
    NoteRule(
        "attention-backend",
        " backend.",  # 0.11.1 and later, of one that was asked for
        r"^Using (?:AttentionBackendEnum\.|_?Backend\.)?([A-Z][A-Z0-9_]+) backend\.",
        "attention by {0}",
    ),
    NoteRule(
        "scheduled-tokens",
        "max_num_scheduled_tokens is set to ",  # 0.20 and later
        r"^max_num_scheduled_tokens is set to (\d+) based on the speculative decoding settings",
        "{0} tokens are scheduled at once, so that drafts fit beside them",
        "prefill in smaller pieces: slower first tokens than without drafts",
        "a larger --max-num-batched-tokens, equal in both arms of a comparison",
    ),
    NoteRule(
        "graphs-fallback",
        "cudagraph_mode",
        r"(?:[Ss]etting|[Oo]verriding) cudagraph_mode(?:=| from \S+ to | to | \S+ to )(?:CUDAGraphMode\.)?([A-Z_]+)",  # 0.10.1 and later
        "CUDA graphs are captured as {0}, not as asked",
        "a verify step that is launched piece by piece, or not from a graph at all, may cost more than drafting saves",
        "an attention back-end that captures the verify step (--attention-backend)",
    ),
    NoteRule(
        "graphs-fallback",
        "Currently the eagle proposer only supports cudagraph_mode PIECEWISE",  # until 0.13
        r"^Currently the eagle proposer only supports cudagraph_mode PIECEWISE",
        "the drafter runs without CUDA graphs",
        "each draft step is launched kernel by kernel",
        "cudagraph_mode PIECEWISE or FULL_AND_PIECEWISE",
    ),
    NoteRule(
        "no-graphs",
        "Skipping CUDA graph capture",
        r"^Skipping (?:encoder and decoder )?CUDA graph capture",
        "no CUDA graphs are captured",
        "each step is launched kernel by kernel: drafting may cost more than it saves",
        "leave --enforce-eager out",
    ),
    NoteRule(
        "no-graphs",
        "Enforce eager set",  # 0.12 and later
        r"^Enforce eager set, (?:disabling|overriding)",
        "nothing is compiled or captured, as asked (--enforce-eager)",
        "no measure of speed: each step is launched kernel by kernel",
        "leave --enforce-eager out",
    ),
    NoteRule(
        "cast",
        "Casting torch.",
        r"^Casting (torch\.\w+) to (torch\.\w+)\.",
        "the model's {0} is served as {1}",
        "its numbers differ from those the drafter was trained on",
        "--dtype as the model's config says",
    ),
    NoteRule(
        "cast",
        "Falling back to ",
        r"^Your device .+ doesn't support (torch\.\w+)\. Falling back to (torch\.\w+)",
        "the model's {0} is served as {1}, because the device does not compute in {0}",
        "its numbers differ from those the drafter was trained on",
    ),
    NoteRule(
        "drafts-text-only",
        "falling back to text-only",
        r"^Draft model (?:\S+ )?does not support multimodal inputs, falling back to text-only mode",
        "the drafter does not see images",
        "low acceptance in requests with images",
    ),
    NoteRule(
        "no-async-scheduling",
        "sync scheduling",
        r"^Async scheduling (?:will be disabled because it is not supported|is not (?:yet )?supported) with (.+)",
        "scheduling waits for each step ({0})",
        "a little slower than without drafts",
    ),
    NoteRule(
        "waiting",
        "No available shared memory broadcast block found in",
        r"^No available shared memory broadcast block found in (\d+) second",
        "its workers have been busy for {0} s",
        "no fault while it compiles or loads; while it serves, a sign that a worker hangs",
    ),
)
