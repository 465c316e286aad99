"""``python -m twofold.fleet FD [hubs]``: a worker over the socket that it inherits as file descriptor FD.

With ``hubs``, sockets of several hubs arrive on that one.
"""

import sys

from twofold.fleet.worker import main

main(int(sys.argv[1]), shared=sys.argv[2:] == ["hubs"])
