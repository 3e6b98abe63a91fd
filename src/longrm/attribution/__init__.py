"""`longrm attribute`: which sentences of a context moved a score, and whether that can be trusted."""
