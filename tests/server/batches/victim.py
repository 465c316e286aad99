"""A server with one batch, to be killed: ``python -m tests.server.batches.victim FOLDER LINES``.

It adds a line to the file ``answered`` in the folder for each completed request, and ends when the batch has ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.server.files.uploads import FORM, form, pieces
from twofold.api.batch.lines import LineCall
from twofold.server.batches.files import BatchLimits
from twofold.server.batches.record import BatchReply
from twofold.server.batches.service import BatchService
from twofold.server.files.service import FileService

URL = "/v1/embeddings"


async def main(folder: Path, count: int) -> None:
    with (folder / "answered").open("a", buffering=1) as answered:

        async def answer(call: LineCall) -> tuple[int, dict[str, Any]]:
            await asyncio.sleep(0.01)
            print(call.custom_id, file=answered)
            return 200, {"model": "mock"}

        files = await FileService.open(folder / "files")
        batches = await BatchService.open(folder / "batches", files, answer, limits=BatchLimits(width=8))
        page = await batches.page("one", {})
        reply = page.data[0] if page.data else await begun(files, batches, count)
        while reply.status != "completed":
            await asyncio.sleep(0.01)
            reply = await batches.get("one", reply.id)
        await batches.close()
        await files.close()


async def begun(files: FileService, batches: BatchService, count: int) -> BatchReply:
    given = [{"custom_id": f"r{n}", "method": "POST", "url": URL, "body": {"input": "a"}} for n in range(count)]
    data = b"".join(json.dumps(one).encode() + b"\n" for one in given)
    file = await files.upload("one", FORM, pieces(form(data)))
    return await batches.create("one", {"input_file_id": file.id, "endpoint": URL, "completion_window": "24h"})


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
