"""Run folders become one self-contained HTML file."""

from longrm.report.build import build

__all__ = ["build"]
