"""`python -m bayesrnn` is the command `bayesrnn`."""

from bayesrnn.cli import main

main()
