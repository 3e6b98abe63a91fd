"""`python -m longrm` is the `longrm` command."""

from longrm.cli.main import main

main()
