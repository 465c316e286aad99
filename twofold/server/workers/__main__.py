"""``python -m twofold.server.workers FD``: a worker over the socket that it inherits as file descriptor FD."""

import sys

from twofold.server.workers.service import main

main(int(sys.argv[1]))
