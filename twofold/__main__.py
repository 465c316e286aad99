"""``python -m twofold`` is the ``twofold`` command."""

from __future__ import annotations

from twofold.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
