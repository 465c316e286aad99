"""The settings of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from twofold.core.errors import ParameterError
from twofold.observe.billing import PriceSheet
from twofold.observe.metrics.requests import DEFAULT_OBJECTIVES, Objective
from twofold.server.admission import QueueLimits, Tiers
from twofold.server.edge.limits import BodyLimits, ConnectionLimits
from twofold.server.models.named_models import NamedModel
from twofold.server.models.registry import RegistrySettings
from twofold.server.response_cache import ResponseCacheSettings

MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The settings of a server. Times are in seconds.

    api_keys        keys with all rights; ``api_keys_file`` has more keys, with tenants, tiers and quotas
    hosts           names of the server in Host headers, beside those of this machine
    origins         origins of web pages that may use the server
    data            folder of files, batches, responses and sums of usage
    own_data        the folder is exclusive; else, while another server uses it, a folder inside it is used
    web             browsers get the web page at /
    tolerant        unknown fields of requests are ignored with a warning; else they are errors
    response_cache  None: no cache
    shutdown_s      how long requests in progress may run after the signal to shut down
    quiet_s         silence after which a stream gets a keep-alive event
    certificate, private_key    PEM files; without them the server speaks plain HTTP
    """

    offers: tuple[NamedModel, ...]
    registry: RegistrySettings = field(default_factory=RegistrySettings)
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    api_keys_file: Path | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    body: BodyLimits = field(default_factory=BodyLimits)
    queue: QueueLimits = field(default_factory=QueueLimits)
    tiers: Tiers = field(default_factory=Tiers.standard)
    prices: PriceSheet | None = None
    objectives: Mapping[str, Objective] = field(default_factory=lambda: DEFAULT_OBJECTIVES)
    data: Path
    own_data: bool = True
    web: bool = True
    tolerant: bool = False
    response_cache: ResponseCacheSettings | None = None
    shutdown_s: float = 30.0
    quiet_s: float = 15.0
    certificate: Path | None = None
    private_key: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= MAX_PORT:
            raise ParameterError(
                f"--port must be a number from 0 to {MAX_PORT}, not {self.port}.",
                param="port",
                hint="0 takes a free port.",
            )

    def url(self, port: int) -> str:
        """The URL for clients on this machine, if the server listens on ``port``."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(self.host, self.host)
        return f"{'http' if self.certificate is None else 'https'}://{host}:{port}"
