"""Every check with a bad fixture and its sound counterpart."""
