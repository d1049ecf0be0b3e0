"""``python -m sdebnn`` is the command line."""

from sdebnn.cli import main

main()
