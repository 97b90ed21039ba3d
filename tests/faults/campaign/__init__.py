"""A campaign of faults against the command `bayesrnn`, from outside.

It knows the command by its public behaviour only: exit codes, output and the files of a run folder. So
the same campaign can attack any checkout:

    python -m tests.faults.campaign --faults 5000 [--seed S] [--only KIND] [--package CHECKOUT]
    python -m tests.faults.campaign soak --steps 20000

shim.py      a C library that counts the file operations of a process, and makes the k-th one fail
server.py    imports the package once, then forks one child for each command
commands.py  talks to that server
world.py     the texts, runs and answers of an undisturbed command, which the disturbed ones are compared with
verdict.py   what counts as survived
crash.py, disk.py, corrupt.py, interrupt.py, pair.py   one kind of fault each
soak.py      a long training with many interruptions
"""
