"""Repeated and statistical proofs: too slow for every day; each module writes one page."""
