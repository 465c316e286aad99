"""``python -m twofold.serve.worker FD``: a worker over the socket that it inherits as file descriptor FD."""

import sys

from twofold.serve.worker.process import main

main(int(sys.argv[1]))
