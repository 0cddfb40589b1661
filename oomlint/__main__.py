"""`python -m oomlint`."""

from oomlint.cli import main

main()
