"""Operations on the server's objects: models, responses, files, batches, and records of requests."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final, Literal

from msgspec import Meta

from twofold.api.openai.responses.reply import ResponseReply
from twofold.api.openai.responses.settings import Includable
from twofold.server.accounting import Part, UsageReply
from twofold.server.batches.record import BatchOrder, BatchReply
from twofold.server.batches.service import BatchPage
from twofold.server.files.form import MAX_SECONDS, MIN_SECONDS
from twofold.server.files.service import MAX_LISTED as MAX_FILES
from twofold.server.files.service import FileDeleted, FilePage, FileReply
from twofold.server.http.about import AboutServer, KeyedServer
from twofold.server.http.models import (
    AnthropicModel,
    AnthropicModelList,
    ModelList,
    ModelReply,
    OllamaProcesses,
    OllamaTags,
)
from twofold.server.http.replicas import DrainOrder, FleetReply, RestartReply, ScaleOrder
from twofold.server.http.root import RootReply
from twofold.server.http.status import MAX_SHOWN, ModelUseList, ModelUseReply, ServerStatus, VersionReply
from twofold.server.openapi import rules
from twofold.server.openapi.generating import LOADING, VERSION
from twofold.server.openapi.operation import (
    ApiOperation,
    OperationLink,
    RequestBody,
    RequestRule,
    in_query,
    page,
    schema_of,
)
from twofold.server.records import RecentPage, RequestRecord
from twofold.server.responses import ResponseDeleted, ResponseItems
from twofold.server.storage.tenants import MAX_LISTED

INCLUDE: Final = in_query("include[]", list[Includable], "Optional parts of the reply.")
ORDER: Final = in_query("order", Literal["asc", "desc"], "By creation time; newest first by default.")
PURPOSE: Final = in_query("purpose", str, "Only files of this purpose.")
BY: Final = in_query(
    "by", Annotated[list[Part], Meta(min_length=1)], "What the sums are divided by.", style="form", explode=False
)
SINCE: Final = in_query("since", {"type": "string", "format": "date"}, "The first day, in UTC.")
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


_get = partial(ApiOperation, "GET")
_post = partial(ApiOperation, "POST")
_delete = partial(ApiOperation, "DELETE")

ABOUT: Final = (
    _get(
        "/",
        "getRoot",
        "The web page for browsers, which needs no key; for programs the server's models and how to connect, as JSON.",
        RootReply,
        contents={"text/html": schema_of(str)},
    ),
    _get("/health", "getHealth", "Succeeds while the server runs.", ServerStatus, is_open=True),
    _get("/ready", "getReady", "Succeeds while the first model can be used.", ServerStatus, is_open=True),
    _get("/version", "getVersion", "Returns the version.", VersionReply),
    _get("/openapi.json", "getDocument", "Returns this document.", {"type": "object"}),
    _get(
        "/metrics",
        "getMetrics",
        "Returns metrics for Prometheus.",
        None,
        contents={"text/plain": schema_of(str), "application/openmetrics-text": schema_of(str)},
    ),
    _get("/api/version", "ollamaVersion", "Returns the version of Ollama with this API.", VersionReply),
    _get("/api/tags", "ollamaTags", "Lists the models.", OllamaTags),
    _get("/api/ps", "ollamaLoaded", "Lists the loaded models.", OllamaProcesses),
    _get(
        "/v1/models",
        "listModels",
        "Lists the models; with anthropic-version in Anthropic's format.",
        ModelList | AnthropicModelList,
        parameters=(VERSION,),
        links=(OperationLink("get", "getModel", {"model": "$response.body#/data/0/id"}),),
    ),
    _get("/v1/models/{model}", "getModel", "Returns a model.", ModelReply | AnthropicModel, parameters=(VERSION,)),
    _get(
        "/v1/twofold/server",
        "getServer",
        "Returns what the caller can ask for. Without a key, a server with keys only says that it has them.",
        AboutServer | KeyedServer,
        is_open=True,
        shows_more=True,
    ),
    _get(
        "/v1/twofold/requests",
        "listRequests",
        "Lists recent requests that ended, newest first.",
        RecentPage,
        parameters=(
            in_query("limit", Annotated[int, Meta(ge=1, le=MAX_SHOWN)], "Maximum number of requests."),
            in_query("before", str, "The id of the request before which they ended."),
        ),
        rules=(RequestRule("before is the id of a recent request.", "before"),),
    ),
    _get("/v1/twofold/requests/{request_id}", "getRequest", "Returns the record of a recent request.", RequestRecord),
    _get("/v1/twofold/usage", "getUsage", "Returns sums of usage and cost.", UsageReply, parameters=(BY, SINCE)),
)
ADMINISTRATION: Final = (
    _get(
        "/v1/twofold/models",
        "listModelUse",
        "Lists states and use of the models. Needs a key with admin rights, like loading, unloading and shutdown.",
        ModelUseList,
    ),
    _post(
        "/v1/twofold/models/{model}/load",
        "loadModel",
        "Loads a model, and replies once it is loaded.",
        ModelUseReply,
        failures=LOADING,
    ),
    _post(
        "/v1/twofold/models/{model}/unload",
        "unloadModel",
        "Unloads a model, at the end of its last request. Later requests load it again.",
        ModelUseReply,
    ),
    _post(
        "/v1/twofold/models/{model}/replicas",
        "scaleModel",
        "Starts or drains replicas, and replies once they are ready, gone, or wait for room on the Ray cluster.",
        FleetReply,
        failures=LOADING,
        body=RequestBody(ScaleOrder),
        rules=(rules.REPLICAS,),
    ),
    _post(
        "/v1/twofold/models/{model}/replicas/drain",
        "drainReplica",
        "Moves the requests of a replica to others and ends it; a node leaves.",
        FleetReply,
        failures=LOADING,
        body=RequestBody(DrainOrder),
        rules=(rules.DRAINED,),
    ),
    _post(
        "/v1/twofold/models/{model}/replicas/restart",
        "restartReplicas",
        "Replaces the model's replicas one after the other, and replies when all are ready.",
        RestartReply,
        failures=LOADING,
        rules=(rules.LOADED,),
    ),
    _post(
        "/v1/twofold/shutdown",
        "stopServer",
        "Stops the server like SIGTERM: running requests may finish within --shutdown-timeout.",
        ServerStatus,
    ),
)
RESPONSES: Final = (
    _get(
        "/v1/responses/{response_id}",
        "getResponse",
        "Returns a stored response, never as a stream.",
        ResponseReply,
        parameters=(
            INCLUDE,
            in_query("stream", Literal[False], "A stored response is never streamed."),
            in_query("include_obfuscation", Literal[False], "As for stream."),
        ),
        rules=(rules.INCLUDE,),
    ),
    _delete("/v1/responses/{response_id}", "deleteResponse", "Deletes a response.", ResponseDeleted),
    _post(
        "/v1/responses/{response_id}/cancel",
        "cancelResponse",
        "Always fails: only background responses could be cancelled.",
        {},
        failures=(409,),
    ),
    _get(
        "/v1/responses/{response_id}/input_items",
        "listResponseItems",
        "Lists the items that a response was generated from.",
        ResponseItems,
        parameters=(INCLUDE, *page(MAX_LISTED, ORDER)),
        rules=(rules.AFTER, rules.INCLUDE),
    ),
)
OF_FILE: Final = {"file_id": "$response.body#/id"}
FILES: Final = (
    _post(
        "/v1/files",
        "uploadFile",
        "Uploads a file of requests.",
        FileReply,
        body=RequestBody(UPLOAD, content_type="multipart/form-data"),
        rules=(rules.UPLOAD_FORM, rules.LIFETIME),
        links=(
            OperationLink("get", "getFile", OF_FILE),
            OperationLink("delete", "deleteFile", OF_FILE),
            OperationLink("content", "getFileContent", OF_FILE),
            OperationLink(
                "batch",
                "createBatch",
                body={
                    "input_file_id": "$response.body#/id",
                    "endpoint": "/v1/completions",
                    "completion_window": "24h",
                },
            ),
        ),
    ),
    _get(
        "/v1/files",
        "listFiles",
        "Lists the files.",
        FilePage,
        parameters=page(MAX_FILES, ORDER, PURPOSE),
        rules=(rules.AFTER,),
    ),
    _get("/v1/files/{file_id}", "getFile", "Returns a file's metadata.", FileReply),
    _delete("/v1/files/{file_id}", "deleteFile", "Deletes a file.", FileDeleted),
    _get(
        "/v1/files/{file_id}/content",
        "getFileContent",
        "Returns a file's bytes.",
        None,
        contents={"application/octet-stream": BINARY},
    ),
)
OF_BATCH: Final = {"batch_id": "$response.body#/id"}
FOLLOW: Final = (
    OperationLink("get", "getBatch", OF_BATCH),
    OperationLink("cancel", "cancelBatch", OF_BATCH),
    OperationLink("output", "getFileContent", {"file_id": "$response.body#/output_file_id"}),
)
BATCHES: Final = (
    _post(
        "/v1/batches",
        "createBatch",
        "Starts to run a file of requests.",
        BatchReply,
        failures=(429,),
        body=RequestBody(BatchOrder),
        rules=(rules.INPUT_FILE,),
        links=FOLLOW[:2],
    ),
    _get(
        "/v1/batches",
        "listBatches",
        "Lists the batches.",
        BatchPage,
        parameters=page(MAX_LISTED),
        rules=(rules.AFTER,),
    ),
    _get("/v1/batches/{batch_id}", "getBatch", "Returns the state of a batch.", BatchReply, links=FOLLOW[1:]),
    _post(
        "/v1/batches/{batch_id}/cancel",
        "cancelBatch",
        "Cancels a batch; finished lines keep their results.",
        BatchReply,
        failures=(409,),
        links=FOLLOW[:1],
    ),
)
STORED: Final = (*ABOUT, *ADMINISTRATION, *RESPONSES, *FILES, *BATCHES)
