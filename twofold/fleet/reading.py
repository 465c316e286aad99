"""The part of a model file that the server itself reads, to render and tokenise prompts and to plan memory."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from twofold.api.base import ModelFacts
from twofold.core.kv_layout import KVType
from twofold.core.model import ModelSpec
from twofold.core.sampling_defaults import NONE, SamplingDefaults
from twofold.engine.draft_source import open_draft
from twofold.formats.base import ModelFile, open_model
from twofold.formats.identity import changed, ends_digest
from twofold.host.paths import CacheFolders
from twofold.host.versions import NUMERICS, twofold_version
from twofold.models.read import read_model
from twofold.text.parsers.format import CompletionFormat
from twofold.text.tokenizers.metadata import read_vocabulary
from twofold.text.tokenizers.tokenizer import Tokenizer

TOKENIZER: Final = "tokenizer."
MAX_TEXT_CHARS: Final = 256
"""Maximum length of a text of the metadata that is kept; chat templates and licences are longer."""


@dataclass(frozen=True, slots=True)
class ModelReading:
    """A model file without its weights. ``nbytes`` is its size, ``created`` its time in seconds since 1970.

    parts          the file, or all its parts, which were ``changed`` at these times
    parameters     number of values in all tensors
    quantization   the format that most of its bytes have
    metadata       numbers and short texts of the file's metadata, without those of its tokenizer
    sampling       default sampling parameters
    draft          its draft model, whose weights have ``draft_bytes``; None without one
    """

    path: Path
    parts: tuple[Path, ...]
    changed: tuple[int, ...]
    spec: ModelSpec
    tokenizer: Tokenizer
    format: CompletionFormat
    nbytes: int
    created: int
    parameters: int
    quantization: str
    metadata: Mapping[str, str | int | float | bool]
    sampling: SamplingDefaults
    draft: ModelSpec | None = None
    draft_bytes: int = 0

    def is_of(self, path: Path) -> bool:
        """Whether this was read from ``path``, and no part has changed since."""
        return path == self.path and changed(self.parts) == self.changed

    def facts(self, context: int) -> ModelFacts:
        """The model as API protocols see it, with this context."""
        return ModelFacts(self.tokenizer, self.format, context, self.spec.hidden_size, self.sampling)


def read_file(
    path: Path,
    folders: CacheFolders,
    chat_template: str | None = None,
    sampling: SamplingDefaults = NONE,
    draft_path: Path | None = None,
) -> ModelReading:
    """Reads a model file, in up to a second; derived data are kept in the cache folder.

    ``chat_template`` replaces the file's own, as in ``EngineOptions``; ``sampling`` overrides the file's defaults.
    Raises the errors of opening the file, reading the model and its draft model, and making the tokenizer.
    """
    with ExitStack() as files:
        file = files.enter_context(open_model(path))
        spec, _ = read_model(file)
        draft = None if draft_path is None else files.enter_context(open_draft(draft_path, path, file, None))
        vocabulary = read_vocabulary(file.tokenizer)
        tokenizer = Tokenizer.of(vocabulary, cache_dir=folders.tokenizers, chat_template=chat_template)
        metadata = _single_values(file.model.values)
        return ModelReading(
            path=path,
            parts=file.parts,
            changed=changed(file.parts),
            spec=spec,
            tokenizer=tokenizer,
            format=CompletionFormat.of(tokenizer),
            nbytes=file.nbytes,
            created=int(path.stat().st_mtime),
            parameters=sum(info.rows * info.columns for info in file.tensors.values()),
            quantization=_quantization(file),
            metadata=metadata,
            sampling=sampling.over(SamplingDefaults.of_model(path, metadata)),
            draft=None if draft is None else draft.spec,
            draft_bytes=0 if draft is None else draft.file.nbytes,
        )


def model_identity(parts: Sequence[Path], settings: Mapping[str, object]) -> str:
    """A digest of everything besides the request that determines outputs: the model's file, and the ``settings`` of the
    engine and the program.

    The file is identified by ``ends_digest`` and its time. Raises ModelNotFoundError if it cannot be read.
    """
    digest, times = ends_digest(parts), changed(parts)
    identity = (digest, times[0] if len(times) == 1 else times, sorted(settings.items()))
    return hashlib.sha256(msgspec.msgpack.encode(identity)).hexdigest()


def system_fingerprint(parts: Sequence[Path], kv_type: KVType) -> str:
    """What determines a model's outputs besides requests and flags: version and numerics of the program, the model's
    file, and the type of the values in the KV cache. Instruction sets, threads and batches do not."""
    return f"twofold-{twofold_version()}-n{NUMERICS}-{ends_digest(parts)[:12]}-{kv_type}"


def _quantization(file: ModelFile) -> str:
    sizes: Counter[str] = Counter()
    for info in file.tensors.values():
        sizes[info.format.name] += info.nbytes
    return sizes.most_common(1)[0][0] if sizes else ""


def _single_values(metadata: Mapping[str, object]) -> dict[str, str | int | float | bool]:
    """Metadata without arrays, long texts, and the tokenizer's keys, whose arrays take long to read."""
    found: dict[str, str | int | float | bool] = {}
    for key in metadata:
        value = None if key.startswith(TOKENIZER) else metadata[key]
        if isinstance(value, int | float) or (isinstance(value, str) and len(value) <= MAX_TEXT_CHARS):
            found[key] = value
    return found
