"""Whether a target, a drafter and one version of an engine fit, in seconds: no weights loaded, no GPU, no torch.

One file a check; its name is its id. What an engine accepts comes from its `EngineFacts`, and from `behaviour` where it
is the same in all its versions.
"""

SEAMS = ("behaviour", "check", "layout", "matrix", "method", "planned", "reading", "serve_args", "stage", "terminal")
