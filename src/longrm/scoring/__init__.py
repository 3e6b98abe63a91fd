"""Scores for the rows of a file, and rows that are ranked and filtered by them: `longrm score`, `rank` and `filter`."""
