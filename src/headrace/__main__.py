"""`python -m headrace`."""

from headrace.tools.cli.main import main

main()
