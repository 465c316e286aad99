"""Models of the Hugging Face hub, fetched by huggingface-hub with its cache, token, resuming and offline mode."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from twofold.core.errors import ModelNotFoundError, NetworkError, ResourceError, closest_match
from twofold.core.sampling_defaults import GENERATION_CONFIG
from twofold.formats.fetch.names import HubSource
from twofold.formats.fetch.store import InstalledModel, ModelStore, Progress, check_space, reported
from twofold.formats.gguf import part_names, part_number

USUAL_QUANTS: Final = ("Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q5_K_M", "Q6_K", "Q8_0", "BF16", "F16", "F32")
"""Quantisations in order of preference, for names without one: the first that the repository has is chosen."""
# Files that are not models: vision projectors, importance matrices.
_OTHER_FILE: Final = re.compile(r"(^|/)(mmproj|imatrix)|[-.]imatrix[-.]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a repository with their sizes in bytes (None if unknown), its revision and its licence."""

    sizes: dict[str, int | None]
    licence: str
    revision: str | None = None


def fetch_hub(name: str, slug: str, source: HubSource, store: ModelStore, progress: Progress) -> InstalledModel:
    """Fetches a model file and its generation config into the hub's own cache, and records them in the store.

    Raises ModelNotFoundError for an unknown repository or file, NetworkError, ResourceError for a gated repository or a
    full disk.
    """
    with _translated(source.repository):
        listing = _listing(source.repository)
    chosen = choose_file(source, list(listing.sizes))
    files = part_names(chosen)
    config = PurePosixPath(chosen).with_name(GENERATION_CONFIG).as_posix()
    more = [config] if config in listing.sizes else []
    sizes = [listing.sizes.get(file) for file in files + more]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    progress.start(total, f"downloading {name}")
    try:
        with reported(store.folder), _translated(source.repository):
            paths = [_download(source.repository, file, listing, progress) for file in files + more]
    finally:
        progress.done()
    size = sum(path.stat().st_size for path in paths[: len(files)])
    model = InstalledModel(name, f"hf.co/{source.repository}/{chosen}", paths[0], size, "", listing.licence)
    return store.record(slug, model)


def choose_file(source: HubSource, files: list[str]) -> str:
    """Returns the file that ``source`` names. Raises ModelNotFoundError, which lists the files, if it is missing."""
    models = sorted(file for file in files if _is_model(file))
    if not models:
        hint = "Look for a repository of the same model whose name ends with GGUF."
        raise ModelNotFoundError(f"hf.co/{source.repository} holds no GGUF file.", hint=hint)
    if source.filename is not None:
        if source.filename in files:
            return source.filename
        close = closest_match(source.filename, models)
        hint = f"Did you mean {close}?" if close else f"It holds: {', '.join(models)}."
        raise ModelNotFoundError(f"hf.co/{source.repository} has no file {source.filename}.", hint=hint)
    if source.quant is None and len(models) == 1:
        return models[0]
    for quant in (source.quant,) if source.quant else USUAL_QUANTS:
        # The name must stand between delimiters: Q4_K is not a part of Q4_K_M.
        pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(quant)}(?![A-Za-z0-9_])", re.IGNORECASE)
        if matching := [file for file in models if pattern.search(file)]:
            return min(matching, key=len)
    asked = source.quant or " or ".join(USUAL_QUANTS)
    raise ModelNotFoundError(
        f"hf.co/{source.repository} has no file of {asked}.", hint=f"It holds: {', '.join(models)}."
    )


def _is_model(file: str) -> bool:
    """Whether a file is the only or the first one of a model."""
    return file.endswith(".gguf") and not _OTHER_FILE.search(file) and part_number(file) in (None, 1)


def _listing(repository: str) -> Listing:
    """The repository's files; in offline mode, its GGUF files in the hub's cache."""
    import huggingface_hub  # noqa: PLC0415 - heavy, and most models do not need it

    try:
        info = huggingface_hub.HfApi().model_info(repository, files_metadata=True)
    except huggingface_hub.errors.OfflineModeIsEnabled:
        return _cached_listing(repository)
    licence = getattr(info.card_data, "license", None)
    sizes = {file.rfilename: file.size for file in info.siblings or ()}
    return Listing(sizes, str(licence or ""), info.sha)


def _cached_listing(repository: str) -> Listing:
    """The GGUF files in the hub's cache, of the newest revision that has any."""
    import huggingface_hub  # noqa: PLC0415 - heavy, and most models do not need it

    with contextlib.suppress(huggingface_hub.errors.CacheNotFound):
        repos = [repo for repo in huggingface_hub.scan_cache_dir().repos if repo.repo_id == repository]
        revisions = [revision for repo in repos for revision in repo.revisions]
        for revision in sorted(revisions, key=lambda revision: -revision.last_modified):
            sizes: dict[str, int | None] = {
                file.file_path.relative_to(revision.snapshot_path).as_posix(): file.size_on_disk
                for file in revision.files
                if file.file_name.endswith(".gguf")
            }
            if sizes:
                return Listing(sizes, "", revision.commit_hash)
    raise huggingface_hub.errors.LocalEntryNotFoundError(f"{repository} is not in the cache")


def _download(repository: str, file: str, listing: Listing, progress: Progress) -> Path:
    import huggingface_hub  # noqa: PLC0415 - heavy, and most models do not need it

    cached = huggingface_hub.try_to_load_from_cache(repository, file, revision=listing.revision)
    size = listing.sizes.get(file)
    if isinstance(cached, str) and (size is None or Path(cached).stat().st_size == size):
        progress.advance(size or 0)
        return Path(cached)
    if size is not None:
        check_space(Path(huggingface_hub.constants.HF_HUB_CACHE), size)
    return Path(
        huggingface_hub.hf_hub_download(repository, file, revision=listing.revision, tqdm_class=bar_class(progress))
    )


def bar_class(progress: Progress) -> Any:
    """A tqdm class that prints nothing and passes the hub's progress to ``progress``.

    For some storage the hub makes two bars: the bar of written bytes counts, not that of transferred bytes.
    """
    from huggingface_hub.utils.tqdm import tqdm  # noqa: PLC0415 - heavy, and most models do not need it

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]
            self.counts = not str(kwargs.get("name")).endswith(".transfer")
            self.update(kwargs.get("initial"))

        def update(self, n: float | None = 1) -> None:
            if self.counts and n:
                progress.advance(int(n))

    return Bar


@contextlib.contextmanager
def _translated(repository: str) -> Iterator[None]:
    """Turns the hub's errors into ours."""
    import httpx2  # noqa: PLC0415 - a dependency of huggingface-hub, with the errors below HTTP
    from huggingface_hub import errors  # noqa: PLC0415 - heavy, and most models do not need it

    try:
        yield
    except errors.GatedRepoError as error:
        hint = f"Accept its terms at https://huggingface.co/{repository}, then set HF_TOKEN."
        raise ResourceError(f"hf.co/{repository} is gated.", hint=hint) from error
    except errors.RepositoryNotFoundError as error:
        hint = "Check the name; a private repository needs HF_TOKEN."
        raise ModelNotFoundError(f"There is no repository hf.co/{repository}.", hint=hint) from error
    except (errors.RemoteEntryNotFoundError, errors.RevisionNotFoundError) as error:
        raise ModelNotFoundError(f"hf.co/{repository} lacks a file that it lists.", hint="Try again later.") from error
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        hint = "Unset HF_HUB_OFFLINE, check the network, or fetch the model where there is one."
        raise NetworkError(f"hf.co/{repository} is not in the cache and cannot be fetched.", hint=hint) from error
    except errors.HFValidationError as error:
        raise ModelNotFoundError(f"hf.co/{repository} is not a repository name.", hint="Write USER/MODEL.") from error
    except (ConnectionError, TimeoutError, errors.HfHubHTTPError, httpx2.HTTPError) as error:
        hint = "Check the network and HF_ENDPOINT, or set HF_HUB_OFFLINE=1 to use only what is cached."
        raise NetworkError(f"hf.co/{repository} cannot be reached: {error}", hint=hint) from error
