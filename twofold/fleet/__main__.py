"""``python -m twofold.fleet FD``: a worker over the socket that it inherits as file descriptor FD."""

import sys

from twofold.fleet.worker import main

main(int(sys.argv[1]))
