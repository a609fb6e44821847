"""The definition of every number that a report shows."""

from typing import Final

GLOSSARY: Final[dict[str, str]] = {
    "speedup": "Output tokens/s with the drafter ÷ without it, on the same prompts with the same server flags.",
    "output tokens/s": "Tokens of the answers ÷ the time that the whole prompt set took, prompts read included.",
    "acceptance length": "Tokens gained per verify step, the target's own (bonus) token included: 1 + accepted / verify steps.",
    "acceptance rate": "Accepted / proposed draft tokens, from 0 to 1.",
    "acceptance at a position": "In which share of all verify steps the drafted token at this position was accepted. "
    "Unconditional: a position behind a refused one counts as refused.",
    "verify step": "One pass of the target over the drafter's proposal.",
    "K": "num_speculative_tokens: how many tokens the drafter proposes in one step.",
    "engine": "Measured in the running server. Drafts past the stop (end of sequence or the token limit) are not counted.",
    "replay": "Computed without an engine, on the very answers that the drafting server gave, from the target's states over them.",
    "engine minus replay": "The difference of both acceptance lengths on the same answers. It should be nothing but rounding: "
    "an engine that accepts less serves the drafter wrongly.",
    "diagnosis": "What the numbers show. Integration: the engine accepts less than replay. Invalid: the counting cannot be right. "
    "Training: the engine serves a drafter that is too weak to pay. Regime: not even a good drafter would pay here. "
    "Undecided: the numbers cannot tell. As expected: none of these.",
    "preflight": "Checks of target, drafter and engine version, without loading weights. "
    "Unknown: what the check needs could not be read, so it says nothing.",
    "interval": "A 95 % bootstrap interval, written [low, high].",
    "verdict": "The drafter pays if the whole speedup interval of the first prompt set lies above 1, "
    "does not pay if it lies below 1, and is undecided otherwise.",
    "identical outputs": "Prompts whose answers are equal, token for token, with and without the drafter.",
    "distinct answers": "How many of the answers differ from each other. Few of them make every other number doubtful.",
    "shared with training": "Prompts of the set that share a run of 8 tokens with a training prompt.",
    "training loss": "Cross-entropy of the drafter against the target's distribution over the draft vocabulary, in nats, "
    "summed over the training-time-test steps with decreasing weights.",
    "held-out loss": "The training loss on documents that are never trained on.",
    "held-out accuracy": "How often the drafter's first choice is the target's, on held-out documents, at each training-time-test step.",
    "training-time-test step": "Step s trains the drafter on its own outputs of the s − 1 steps before, as it will meet them "
    "when it drafts.",
    "vocabulary coverage": "Share of held-out answer tokens that the draft vocabulary holds.",
    "supervised tokens": "Tokens of answers: those that the drafter is trained on.",
    "auxiliary layers": "Target layers whose states feed the drafter, counted as layers run (0 = the embeddings).",
}
