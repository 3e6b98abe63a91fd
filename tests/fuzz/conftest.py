"""The counts of the fuzz suite, told at the end of a run."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what became of every kind's inputs."""
    reports = [report for name in ("passed", "failed") for report in terminalreporter.getreports(name)]
    lines = [value for report in reports for name, value in report.user_properties if name == "fuzz"]
    if lines:
        terminalreporter.write_sep("-", "bad input, by kind")
        for line in lines:
            terminalreporter.write_line(line)
