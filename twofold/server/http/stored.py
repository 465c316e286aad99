"""The objects that the server stores for a tenant: responses, files and batches."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NoReturn

from msgspec import Meta

from twofold.api.openai.responses.reply import ResponseReply
from twofold.api.openai.responses.settings import Includable
from twofold.server.batches.record import BatchOrder, BatchReply
from twofold.server.batches.service import BatchPage
from twofold.server.files.form import MAX_SECONDS, MIN_SECONDS
from twofold.server.files.service import MAX_LISTED as MAX_FILES
from twofold.server.files.service import FileDeleted, FilePage, FileReply
from twofold.server.http.endpoints import EndpointRequest, EndpointResponse
from twofold.server.openapi import rules
from twofold.server.openapi.route import OperationLink, delete, get, in_query, page, post, schema_of
from twofold.server.responses import ResponseDeleted, ResponseItems
from twofold.server.storage.tenants import MAX_LISTED

INCLUDE: Final = in_query("include[]", list[Includable], "Optional parts of the reply.")
ORDER: Final = in_query("order", Literal["asc", "desc"], "By creation time; newest first by default.")
PURPOSE: Final = in_query("purpose", str, "Only files of this purpose.")
BINARY: Final = {"type": "string", "format": "binary"}
UPLOAD: Final = {
    "type": "object",
    "properties": {
        "file": {**BINARY, "description": "Sent with a file name."},
        "purpose": schema_of(Literal["batch"]),
        "expires_after[anchor]": schema_of(Literal["created_at"]),
        "expires_after[seconds]": schema_of(Annotated[int, Meta(ge=MIN_SECONDS, le=MAX_SECONDS)]),
    },
    "required": ["file", "purpose"],
    "additionalProperties": False,
}
"""The form of an upload."""
BATCHED: Final = {"input_file_id": "$response.body#/id", "endpoint": "/v1/completions", "completion_window": "24h"}
OF_FILE: Final = {"file_id": "$response.body#/id"}
OF_BATCH: Final = {"batch_id": "$response.body#/id"}
FOLLOW: Final = (
    OperationLink("get", "getBatch", OF_BATCH),
    OperationLink("cancel", "cancelBatch", OF_BATCH),
    OperationLink("output", "getFileContent", {"file_id": "$response.body#/output_file_id"}),
)


@get(
    "/v1/responses/{response_id}",
    reply=ResponseReply,
    parameters=(
        INCLUDE,
        in_query("stream", Literal[False], "A stored response is never streamed."),
        in_query("include_obfuscation", Literal[False], "As for stream."),
    ),
    rules=(rules.INCLUDE,),
)
async def get_response(asked: EndpointRequest) -> dict[str, Any]:
    """Returns a stored response, never as a stream."""
    query = asked.query.multi_items()
    return await asked.services.stores.responses.get(asked.tenant, asked.path["response_id"], query)


@delete("/v1/responses/{response_id}")
async def delete_response(asked: EndpointRequest) -> ResponseDeleted:
    """Deletes a response."""
    return await asked.services.stores.responses.delete(asked.tenant, asked.path["response_id"])


@post("/v1/responses/{response_id}/cancel", reply={}, failures=(409,))
async def cancel_response(asked: EndpointRequest) -> NoReturn:
    """Always fails: only background responses could be cancelled."""
    await asked.services.stores.responses.cancel(asked.tenant, asked.path["response_id"])


@get(
    "/v1/responses/{response_id}/input_items",
    parameters=(INCLUDE, *page(MAX_LISTED, ORDER)),
    rules=(rules.AFTER, rules.INCLUDE),
)
async def list_response_items(asked: EndpointRequest) -> ResponseItems:
    """Lists the items that a response was generated from."""
    query = asked.query.multi_items()
    return await asked.services.stores.responses.input_items(asked.tenant, asked.path["response_id"], query)


@post(
    "/v1/files",
    body=UPLOAD,
    body_type="multipart/form-data",
    rules=(rules.UPLOAD_FORM, rules.LIFETIME),
    links=(
        OperationLink("get", "getFile", OF_FILE),
        OperationLink("delete", "deleteFile", OF_FILE),
        OperationLink("content", "getFileContent", OF_FILE),
        OperationLink("batch", "createBatch", body=BATCHED),
    ),
)
async def upload_file(asked: EndpointRequest) -> FileReply:
    """Uploads a file of requests."""
    content_type = asked.headers.get("content-type")
    return await asked.services.stores.files.upload(asked.tenant, content_type, asked.pieces())


@get("/v1/files", parameters=page(MAX_FILES, ORDER, PURPOSE), rules=(rules.AFTER,))
async def list_files(asked: EndpointRequest) -> FilePage:
    """Lists the files."""
    return await asked.services.stores.files.page(asked.tenant, asked.query)


@get("/v1/files/{file_id}")
async def get_file(asked: EndpointRequest) -> FileReply:
    """Returns a file's metadata."""
    return await asked.services.stores.files.get(asked.tenant, asked.path["file_id"])


@delete("/v1/files/{file_id}")
async def delete_file(asked: EndpointRequest) -> FileDeleted:
    """Deletes a file."""
    return await asked.services.stores.files.delete(asked.tenant, asked.path["file_id"])


@get("/v1/files/{file_id}/content", contents={"application/octet-stream": BINARY})
async def get_file_content(asked: EndpointRequest) -> EndpointResponse:
    """Returns a file's bytes."""
    content = await asked.services.stores.files.content(asked.tenant, asked.path["file_id"])
    return EndpointResponse(
        pieces=content.pieces,
        content_type=b"application/octet-stream",
        headers=((b"content-length", str(content.file.bytes).encode()),),
    )


@post("/v1/batches", failures=(429,), body=BatchOrder, rules=(rules.INPUT_FILE,), links=FOLLOW[:2])
async def create_batch(asked: EndpointRequest) -> BatchReply:
    """Starts to run a file of requests."""
    return await asked.services.stores.batches.create(asked.tenant, await asked.body(), key=asked.caller.id)


@get("/v1/batches", parameters=page(MAX_LISTED), rules=(rules.AFTER,))
async def list_batches(asked: EndpointRequest) -> BatchPage:
    """Lists the batches."""
    return await asked.services.stores.batches.page(asked.tenant, asked.query)


@get("/v1/batches/{batch_id}", links=FOLLOW[1:])
async def get_batch(asked: EndpointRequest) -> BatchReply:
    """Returns the state of a batch."""
    return await asked.services.stores.batches.get(asked.tenant, asked.path["batch_id"])


@post("/v1/batches/{batch_id}/cancel", failures=(409,), links=FOLLOW[:1])
async def cancel_batch(asked: EndpointRequest) -> BatchReply:
    """Cancels a batch; finished lines keep their results."""
    return await asked.services.stores.batches.cancel(asked.tenant, asked.path["batch_id"])


ROUTES: Final = (
    get_response,
    delete_response,
    cancel_response,
    list_response_items,
    upload_file,
    list_files,
    get_file,
    delete_file,
    get_file_content,
    create_batch,
    list_batches,
    get_batch,
    cancel_batch,
)
