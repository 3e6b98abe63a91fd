"""Which sentences of a context moved a score, and whether that can be trusted."""
