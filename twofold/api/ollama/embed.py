"""/api/embed, and its older form /api/embeddings: texts whose vectors are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from twofold.api.base import Job, ModelFacts, ReplyHead
from twofold.api.extras import read_explain
from twofold.api.fields import FieldError, Fields, impossible
from twofold.api.ollama.fields import read_keep_alive, read_model, read_sampling
from twofold.api.ollama.replies import figures
from twofold.api.openai.bodies import MAX_PROMPTS
from twofold.api.pooling import PoolingParams
from twofold.api.texts import tokenized
from twofold.api.vectors import PoolingFields, PoolingRequest
from twofold.core.errors import ContextLengthError
from twofold.core.params import MAX_TOKEN_ID
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import GivenPrompt


@dataclass(frozen=True, slots=True)
class EmbedRequest(PoolingRequest):
    """Texts to read. ``truncate`` cuts what is longer than the model's context, or than ``window`` tokens (num_ctx);
    ``single``: the reply is one vector, that of /api/embeddings."""

    common: PoolingFields
    given: tuple[str, ...]
    truncate: bool
    window: int | None
    single: bool
    keep_alive_s: float | None

    @classmethod
    def read(cls, body: object) -> Self:
        """Reads a body of /api/embed. Raises ParameterError for an impossible, unknown or unsupported field."""
        fields = Fields(body)
        given = fields.require("input")
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise impossible("input", given, "a text or a list of texts")
        if len(texts) > MAX_PROMPTS:
            raise FieldError(f"input holds {len(texts)} texts; the maximum is {MAX_PROMPTS}.", param="input")
        params = PoolingParams(dimensions=fields.whole("dimensions", 0, MAX_TOKEN_ID) or None)
        return cls._read(fields, tuple(texts), params, truncate=fields.flag("truncate", True), single=False)

    @classmethod
    def read_single(cls, body: object) -> Self:
        """Reads a body of /api/embeddings."""
        fields = Fields(body)
        prompt = fields.text("prompt") or ""
        return cls._read(fields, (prompt,) if prompt else (), PoolingParams(), truncate=True, single=True)

    @classmethod
    def _read(
        cls, fields: Fields, given: tuple[str, ...], params: PoolingParams, *, truncate: bool, single: bool
    ) -> Self:
        request = cls(
            common=PoolingFields(read_model(fields), params, read_explain(fields)),
            given=given,
            truncate=truncate,
            window=read_sampling(fields).window,
            single=single,
            keep_alive_s=read_keep_alive(fields),
        )
        fields.close()
        return request

    def prepare(self, model: ModelFacts) -> Sequence[Job]:
        return self.jobs(model, (self._prompt(text, model) for text in self.given))

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> dict[str, Any]:  # noqa: ARG002
        vectors = [list(output.embedding or ()) for output in outputs]
        if self.single:
            return {"embedding": vectors[0] if vectors else []}
        told = figures(head, outputs)
        names = ("total_duration", "load_duration", "prompt_eval_count")
        return {"model": head.model, "embeddings": vectors, **{name: told[name] for name in names}}

    def _prompt(self, text: str, model: ModelFacts) -> GivenPrompt:
        ids = tokenized(GivenPrompt(text=text), model.unbounded()).token_ids or ()
        room = min(model.context, self.window or model.context)
        if len(ids) > room and not self.truncate:
            raise ContextLengthError(
                f"The text has {len(ids)} tokens; it does not fit the context of {room}.",
                hint="Shorten it, or set truncate.",
            )
        return GivenPrompt(text, ids[:room])
