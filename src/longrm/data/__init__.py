"""Preference data as users have it: read in every common format, written as JSONL or Parquet."""

from longrm.data.formats import FORMATS
from longrm.data.readers import ComparisonReader, ComparisonRow, Skipped, read, read_demonstrations
from longrm.data.writing import check_writable, write, write_rows

__all__ = [
    "FORMATS",
    "ComparisonReader",
    "ComparisonRow",
    "Skipped",
    "check_writable",
    "read",
    "read_demonstrations",
    "write",
    "write_rows",
]
