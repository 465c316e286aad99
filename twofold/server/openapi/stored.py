"""Operations on what the server keeps: models, responses, files, batches, and what was written down of requests."""

from __future__ import annotations

from typing import Final

from twofold.api.body import kind_of
from twofold.api.openai.responses.settings import Includable
from twofold.server.accounting import PARTS
from twofold.server.files.service import MAX_LISTED as MAX_FILES
from twofold.server.openapi import rules
from twofold.server.openapi.generating import VERSION
from twofold.server.openapi.operation import JSON, ApiOperation, Body, OperationLink, replied
from twofold.server.openapi.shapes import ANYTHING, OBJECT, listed, only, ref, text, word
from twofold.server.openapi.stored_requests import ORDER, in_path, in_query, page, upload
from twofold.server.storage.paging import MAX_LISTED

MODEL: Final = in_path("model", text(1))
FILE: Final = in_path("file_id", text(1))
BATCH: Final = in_path("batch_id", text(1))
RESPONSE: Final = in_path("response_id", text(1))
REQUEST: Final = in_path("request_id", text(1))
INCLUDE: Final = in_query("include[]", listed(kind_of(Includable).form), "What to tell beside what is always told.")
PURPOSE: Final = in_query("purpose", text(), "Only files of this purpose.")
BY: Final = in_query("by", listed(word(*PARTS), 1), "What the sums are divided by.", style="form", explode=False)
SINCE: Final = in_query("since", {"type": "string", "format": "date"}, "The first day, in UTC.")
BINARY: Final = {"application/octet-stream": {"type": "string", "format": "binary"}}

ABOUT: Final = (
    ApiOperation(
        "GET",
        "/",
        "getRoot",
        "Server",
        "What runs here and how to reach it: a page for browsers, JSON for programs.",
        {JSON: ref("Root"), "text/html": text()},
    ),
    ApiOperation(
        "GET", "/health", "getHealth", "Server", "Tells that the server lives.", replied("Health"), is_open=True
    ),
    ApiOperation(
        "GET",
        "/ready",
        "getReady",
        "Server",
        "Tells that requests for the first model are answered.",
        replied("Ready"),
        is_open=True,
    ),
    ApiOperation("GET", "/version", "getVersion", "Server", "Tells the version.", replied("Version")),
    ApiOperation("GET", "/openapi.json", "getDocument", "Server", "This document.", {JSON: OBJECT}),
    ApiOperation(
        "GET",
        "/metrics",
        "getMetrics",
        "Server",
        "Metrics for Prometheus.",
        {"text/plain": text(), "application/openmetrics-text": text()},
    ),
    ApiOperation(
        "GET",
        "/v1/models",
        "listModels",
        "Models",
        "Lists the models, as Anthropic's clients read them where anthropic-version is sent.",
        replied("Models", "AnthropicModels"),
        parameters=(VERSION,),
        links=(OperationLink("get", "getModel", {"model": "$response.body#/data/0/id"}),),
    ),
    ApiOperation(
        "GET",
        "/v1/models/{model}",
        "getModel",
        "Models",
        "Tells of one model.",
        replied("Model", "AnthropicModel"),
        (404,),
        parameters=(MODEL, VERSION),
    ),
    ApiOperation(
        "GET",
        "/v1/twofold/requests/{request_id}",
        "getRequest",
        "Twofold",
        "The record of one of the last requests.",
        replied("RequestRecord"),
        (404,),
        parameters=(REQUEST,),
    ),
    ApiOperation(
        "GET",
        "/v1/twofold/usage",
        "getUsage",
        "Twofold",
        "Sums of what was used.",
        replied("Used"),
        parameters=(BY, SINCE),
    ),
)
ADMINISTRATION: Final = (
    ApiOperation(
        "GET",
        "/v1/twofold/models",
        "listModelUse",
        "Twofold",
        "How much each model is used. Needs a key that may administer, as all operations on models and the server.",
        replied("ModelUses"),
    ),
    ApiOperation(
        "POST",
        "/v1/twofold/models/{model}/load",
        "loadModel",
        "Twofold",
        "Loads a model; answers once it is loaded.",
        replied("ModelUse"),
        (404, 422, 502),
        parameters=(MODEL,),
    ),
    ApiOperation(
        "POST",
        "/v1/twofold/models/{model}/unload",
        "unloadModel",
        "Twofold",
        "Unloads a model: now if nothing uses it, else when its last request has ended. Later requests load it again.",
        replied("ModelUse"),
        (404,),
        parameters=(MODEL,),
    ),
    ApiOperation(
        "POST",
        "/v1/twofold/shutdown",
        "stopServer",
        "Twofold",
        "Stops the server as SIGTERM does: requests that run may finish within --shutdown-timeout.",
        replied("Stopping"),
    ),
)
OF_RESPONSES: Final = (
    ApiOperation(
        "GET",
        "/v1/responses/{response_id}",
        "getResponse",
        "Responses",
        "Returns a stored response, never as a stream.",
        replied("Response"),
        (404,),
        parameters=(
            RESPONSE,
            INCLUDE,
            in_query("stream", only(False), "A stored response is never streamed."),
            in_query("include_obfuscation", only(False), "As for stream."),
        ),
        rules=(rules.INCLUDE,),
    ),
    ApiOperation(
        "DELETE",
        "/v1/responses/{response_id}",
        "deleteResponse",
        "Responses",
        "Deletes a response.",
        replied("ResponseDeleted"),
        (404,),
        parameters=(RESPONSE,),
    ),
    ApiOperation(
        "POST",
        "/v1/responses/{response_id}/cancel",
        "cancelResponse",
        "Responses",
        "Always refused: only background responses can be cancelled, and there are none.",
        {JSON: ANYTHING},
        (404, 409),
        parameters=(RESPONSE,),
    ),
    ApiOperation(
        "GET",
        "/v1/responses/{response_id}/input_items",
        "listResponseItems",
        "Responses",
        "The input items of a response.",
        replied("ResponseItems"),
        (404,),
        parameters=(RESPONSE, INCLUDE, *page(MAX_LISTED, ORDER)),
        rules=(rules.AFTER, rules.INCLUDE),
    ),
)
_OF_FILE: Final = {"file_id": "$response.body#/id"}
_BATCH_OF: Final = {"input_file_id": "$response.body#/id", "endpoint": "/v1/completions", "completion_window": "24h"}
FILES: Final = (
    ApiOperation(
        "POST",
        "/v1/files",
        "uploadFile",
        "Files",
        "Uploads a file of requests.",
        replied("File"),
        body=Body(upload(), content_type="multipart/form-data"),
        rules=(rules.FORM, rules.LIFETIME),
        links=(
            OperationLink("get", "getFile", _OF_FILE),
            OperationLink("delete", "deleteFile", _OF_FILE),
            OperationLink("content", "getFileContent", _OF_FILE),
            OperationLink("batch", "createBatch", body=_BATCH_OF),
        ),
    ),
    ApiOperation(
        "GET",
        "/v1/files",
        "listFiles",
        "Files",
        "Lists the files.",
        replied("FilePage"),
        parameters=page(MAX_FILES, ORDER, PURPOSE),
        rules=(rules.AFTER,),
    ),
    ApiOperation(
        "GET",
        "/v1/files/{file_id}",
        "getFile",
        "Files",
        "The metadata of a file.",
        replied("File"),
        (404,),
        parameters=(FILE,),
    ),
    ApiOperation(
        "DELETE",
        "/v1/files/{file_id}",
        "deleteFile",
        "Files",
        "Removes a file.",
        replied("FileDeleted"),
        (404,),
        parameters=(FILE,),
    ),
    ApiOperation(
        "GET",
        "/v1/files/{file_id}/content",
        "getFileContent",
        "Files",
        "Its bytes.",
        BINARY,
        (404,),
        parameters=(FILE,),
    ),
)
_OF_BATCH: Final = {"batch_id": "$response.body#/id"}
_FOLLOW: Final = (
    OperationLink("get", "getBatch", _OF_BATCH),
    OperationLink("cancel", "cancelBatch", _OF_BATCH),
    OperationLink("output", "getFileContent", {"file_id": "$response.body#/output_file_id"}),
)
BATCHES: Final = (
    ApiOperation(
        "POST",
        "/v1/batches",
        "createBatch",
        "Batches",
        "Starts to run a file of requests.",
        replied("Batch"),
        (429,),
        Body(ref("BatchOrder")),
        rules=(rules.INPUT_FILE,),
        links=_FOLLOW[:2],
    ),
    ApiOperation(
        "GET",
        "/v1/batches",
        "listBatches",
        "Batches",
        "Lists the batches.",
        replied("BatchPage"),
        parameters=page(MAX_LISTED),
        rules=(rules.AFTER,),
    ),
    ApiOperation(
        "GET",
        "/v1/batches/{batch_id}",
        "getBatch",
        "Batches",
        "The state of a batch.",
        replied("Batch"),
        (404,),
        parameters=(BATCH,),
        links=_FOLLOW[1:],
    ),
    ApiOperation(
        "POST",
        "/v1/batches/{batch_id}/cancel",
        "cancelBatch",
        "Batches",
        "Cancels the lines that have no result yet.",
        replied("Batch"),
        (404, 409),
        parameters=(BATCH,),
        links=_FOLLOW[:1],
    ),
)
STORED: Final = (*ABOUT, *ADMINISTRATION, *OF_RESPONSES, *FILES, *BATCHES)
