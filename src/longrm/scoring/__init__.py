"""Scores for the rows of a file: what `longrm score` is made of."""
