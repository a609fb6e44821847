"""Whether a target, a drafter and one version of an engine fit, in seconds: no weights loaded, no GPU, no torch.

The checks are the files of `checks/`. What an engine accepts comes from its `EngineFacts`.
"""
