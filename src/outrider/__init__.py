"""Outrider: from a served target model to a drafter that measurably speeds it up."""

__version__ = "0.1.0"
