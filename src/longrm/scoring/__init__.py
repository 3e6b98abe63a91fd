"""Scores for the rows of a file, and what is ranked and filtered by them: `longrm score`, `rank` and `filter`."""
