"""`python -m fedflux`."""

from fedflux.cli import main

main()
