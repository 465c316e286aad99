"""Writes docs/compatibility.md: ``python -m tests.server.compatibility``."""

from tests.server.compatibility.table import PAGE, page

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
