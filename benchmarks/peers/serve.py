"""The request loop of a worker. Uses only the standard library, since it also runs in the peers' environments."""

import json
import sys


def serve(handlers: "dict[str, object]") -> None:
    """Handles requests until standard input closes. ``handlers`` maps ops to functions of the request's fields."""
    for line in sys.stdin:
        request = json.loads(line)
        try:
            seconds = handlers[request.pop("op")](**request)  # type: ignore[operator]
            answer = {"seconds": seconds}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
