"""The loop of a worker. Standard library only: it runs in the peers' environments too."""

import json
import sys


def serve(handlers: "dict[str, object]") -> None:
    """Answers requests until standard input ends. ``handlers`` maps ops to functions of the request's fields."""
    for line in sys.stdin:
        request = json.loads(line)
        try:
            seconds = handlers[request.pop("op")](**request)  # type: ignore[operator]
            answer = {"seconds": seconds}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
