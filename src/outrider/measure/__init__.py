"""The same prompts with and without the drafter: acceptance, tokens/s, speedup, and whether outputs are the same."""
