"""`longrm serve`: an HTTP server of one reward model, with one queue and the wire formats of trainers."""
