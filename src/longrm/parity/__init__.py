"""Our fp32 scores against those of a server that answers for the same model: `longrm parity`."""
