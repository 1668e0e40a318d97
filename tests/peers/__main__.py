"""`python -m tests.peers`: fetch the newest reference tools; with a tool's name and arguments, run it."""

import os
import sys

from tests import peers


def main(arguments):
    if arguments:
        line = peers.command(*arguments)
        peers.enter_tracefs()
        os.execv(line[0], line)
    peers.root(refresh=True)
    for tool in peers.PACKAGES:
        shown = getattr(peers, tool)("--version").stdout.splitlines()
        print(tool, shown[0] if shown else "does not run")


main(sys.argv[1:])
