"""Whether a target, a drafter and one version of an engine fit, in seconds: no weights loaded, no GPU, no torch.

One file a check; its name is its id. What an engine accepts comes from its `EngineFacts`.
"""

SEAMS = (
    "captured",
    "check",
    "conditions",
    "config_types",
    "drafter_lookup",
    "flag_rules",
    "layout",
    "matrix",
    "method",
    "own_verdict",
    "plain_config",
    "planned",
    "reading",
    "serve_args",
    "stage",
    "terminal",
    "versions",
)
