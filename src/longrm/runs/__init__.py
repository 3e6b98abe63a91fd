"""Run folders and their logs."""
