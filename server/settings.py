"""Settings of a replica. Read from arguments and `TUTTI_…` variables at the entry point, nowhere else."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from model.config import MAX_BEAMS, SHIPPED_LANGUAGES
from model.whisper import folder_of
from server.configuration.addresses import ListenAddress, listen_address, listen_host
from server.configuration.checks import DAY_S, Seconds, bad_setting, own_address, table, url_of, whisper_folder
from server.configuration.models_file import ModelEntry, is_named, named_models, read_models
from server.configuration.variables import listed, spelled

SHIPPED_ON_DEMAND = tuple(
    ModelEntry(name=name, path=Path(name), languages=(language,), on_demand=True)
    for name, language in [*SHIPPED_LANGUAGES.items()][1:]
)
UPLOADS_A_PLACE = 8  # at a time, in the memory of one upload of the largest size
AUTO_SLOTS = 1_024  # more streams than one replica carries
CONNECTED_A_SLOT = 4  # live channels, of which most rest
STALLS = 3  # hung engines, one after the other, that a stream outlasts
NEEDED = {  # by settings that mean nothing without it
    "voices": "speakers",
    "callback_hosts": "callback_folder",
    "callback_folder": "callback_hosts",
    "callback_secret": "callback_hosts",
    "twilio_public_url": "twilio_auth_token",
}
FORK_SLOTS = 16  # a fork lasts 10 to 30 ms: 300 streams with 20 pauses a minute have 3 at a time


class Settings(BaseSettings):
    """Every field has a `TUTTI_` variable of the same name."""

    model_config = SettingsConfigDict(
        env_prefix="TUTTI_",
        env_ignore_empty=True,  # compose's ${X:-} means: not set
        enable_decoding=False,  # lists are read below, not as JSON alone
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,  # it may be a key
        protected_namespaces=(),
        allow_inf_nan=False,
    )

    # Address

    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` for all interfaces, `::` for all with IPv6."""
    port: int = Field(8080, ge=0, le=65_535)
    """Port to listen on; 0 picks a free one."""
    vosk_port: int | None = Field(None, ge=0, le=65_535)
    """Second port for clients of vosk-server, which send no API key. Without it they use the path `/vosk`."""

    wyoming_port: Annotated[str, BeforeValidator(own_address)] | None = None
    """Port for Home Assistant's Wyoming protocol, which has no API keys: `10300` for this machine alone,
    `0.0.0.0:10300` for all interfaces, then parameters of its streams: docs/home-assistant.md. By default none."""

    audiosocket_port: Annotated[str, BeforeValidator(own_address)] | None = None
    """Port for Asterisk's AudioSocket, which has no API keys: an address as for `wyoming_port`, then parameters, of
    which `forward_url` is the WebSocket that gets the text of calls: docs/contact-center.md. By default none."""

    metrics_port: int | None = Field(None, ge=0, le=65_535)
    """Port for `/metrics` alone, which the main port then does not serve. Without it `/metrics` is on the main port."""

    sagemaker: bool = False
    """Serve the paths that Amazon SageMaker calls, whose clients cannot send keys: docs/sagemaker.md. The images set it
    when SageMaker starts them."""

    # Models

    model: Path | None = None
    """Model to serve: a folder, a checkpoint or a shipped model's name; several as `NAME=PATH`, separated by commas. By
    default the shipped models: English, and Mandarin once a client asks for it."""
    models: Annotated[tuple[ModelEntry, ...], BeforeValidator(table)] = ()
    """Several models as JSON, the default one first."""
    models_file: Path | None = None
    """Several models as tables of a TOML file. Cannot be combined with `model` or `models`."""
    model_aliases: Annotated[dict[str, str], BeforeValidator(table)] = Field(default_factory=lambda: {"*": "default"})
    """Names that clients use, as JSON, each with a model or `default`; `*` is every other, refused without it."""
    unload_idle_minutes: float | None = Field(None, ge=0.001, le=525_600)
    """Unload a model that was loaded on demand after this many minutes without a stream. By default never."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the models compute; `auto` takes a GPU if there is one."""
    precision: Literal["auto", "int8", "bf16", "fp32", "fp16"] = "auto"
    """Number format of the models; `auto` takes the fastest. A checkpoint in int8 gives the same text everywhere."""
    graph_rewriting: Literal["auto", "off"] = "auto"
    """Run the compiled step of a published model that has one; `off` runs every graph in ONNX Runtime."""
    reproducible: bool = False
    """Compute floats in tiles of a fixed size, so that log-probabilities are bit-identical in every batch."""
    threads: int = Field(0, ge=0, le=256)
    """Compute threads of each engine, which divide a batch; 0 chooses by the cores and the model."""

    # Processes

    front_ends: Literal["auto"] | Annotated[int, Field(ge=0, le=256)] = "auto"
    """Processes that serve clients, before those with the models; 0: one process does both. `auto` counts cores: 0 on
    up to three."""
    engines: Literal["auto"] | Annotated[int, Field(ge=1, le=16)] = "auto"
    """With front ends: processes with the models, each for the streams of its share of the front ends. `auto`: several
    where one engine's Python limits the server, which is a matter of cores and model."""
    engine_spare: bool = True
    """With front ends: keep one more process with the models, which takes over at once if another one ends."""

    # Decoding

    decoder: Literal["auto", "greedy", "beam"] = "auto"
    """Decoder; `auto` takes beam search where there is a language model."""
    beams: int | None = Field(None, ge=1, le=MAX_BEAMS)
    """Hypotheses that beam search keeps. By default 256, for GRUs 128, for a transducer 4."""
    lm: Literal["off"] | Path | None = None
    """Language model, `.arpa`, `.arpa.gz` or `.lm`; `off` for none. By default the shipped one."""
    finals: Literal["auto", "fast", "context", "accurate"] = "auto"
    """Finals of requests that do not ask. With `context` the network computes each finished segment once more, as a
    whole; with `accurate` a larger one reads it as well. `auto`: accurate for recordings, context for live streams,
    fast for streams that resume."""
    second_pass: Annotated[str, AfterValidator(whisper_folder)] | None = None
    """`whisper:DIR`: accurate finals by this Whisper model, for models of its languages, if they come in time."""
    second_pass_timeout_s: Seconds = 2.0
    """Seconds after which a live final that `second_pass` has not read is sent as our own."""
    grammars: Path | None = None
    """Folder of grammars, `LANGUAGE-NAME.arpa` or `.arpa.gz`, in addition to those that ship."""

    # Text

    written_forms: Path | None = None
    """File of your own written forms, on each line a phrase, a tab, and its written form: docs/contact-center.md. By
    default none."""

    # Batches and capacity

    max_streams: Literal["auto"] | Annotated[int, Field(ge=1, le=1_000_000_000)] = "auto"
    """Most channels open at a time, without those at rest; more are answered 503. `auto` follows the estimate for this
    machine."""
    max_batch: int = Field(128, ge=1, le=16_384)
    """Most rows of a batch."""
    policy: Literal["eager", "deadline", "single"] = "eager"
    """When a batch starts: at once, at the latest time that meets the deadlines, or one stream at a time."""
    latency_budget_ms: float = Field(100.0, ge=0.001, le=10_000)
    """Deadline of a live step in milliseconds, counted from its arrival."""

    # Speech and segments

    vad: Literal["auto", "off", "silero"] = "auto"
    """Voice activity by silero-vad 6, which ships with the program. `auto`: for streams that ask for starts of speech
    or for turns. `silero`: for all streams, and endpoints need its silence, too."""
    speakers: bool = False
    """Distinguish speakers for clients that ask, as `diarize=true` does; mind the law on voices: docs/speakers.md."""
    voices: Path | None = None
    """Folder of enrolled voices, as `tutti voice enroll` makes it, for `speaker=NAME`; needs `speakers`:
    docs/speakers.md. By default none."""
    turn_model: Path | None = None
    """Graph of Smart Turn's form, asked in pauses whether the turn is over: docs/voice-agents.md. By default none."""
    min_endpoint_ms: float = Field(400.0, ge=0, le=10_000)
    """Least silence that ends a segment. Words have blank frames inside: a shorter silence would cut them."""
    max_utterance_s: float = Field(30.0, ge=1, le=3_600)
    """Longest segment in seconds; a longer one is cut between words."""
    rest_s: Literal["off"] | Annotated[float, Field(ge=0.8, le=DAY_S)] = "off"
    """Seconds of silence after which a stream rests, so its steps are not computed; `off`: never. docs/sizing.md."""
    max_channels: int = Field(2, ge=1, le=20)
    """Most channels of one connection with `multichannel=true`."""

    # Limits of live connections

    idle_timeout_s: Seconds = 10.0
    """Seconds without audio or a message after which a stream is closed, as the Deepgram service does."""
    max_backlog_s: float = Field(30.0, ge=3, le=3_600)
    """Seconds of audio that may wait for the model before a stream is closed."""
    stall_timeout_s: Seconds = 30.0
    """Seconds without an answer from the engine after which a stream is closed. A hung engine ends after twice as long;
    with front ends after a third, so that a spare one serves before streams are closed."""
    lenient_features: bool = False
    """Ignore and name features that this server lacks, such as `search`, instead of refusing them; never `redact`."""

    # Uploads

    max_upload_bytes: int = Field(100 * 2**20, ge=1_024, le=2**40)
    """Largest body of an upload."""
    max_upload_s: float = Field(14_400.0, ge=1, le=30 * DAY_S)
    """Longest recording in seconds: a small body can decode to hours of silence."""
    max_uploads: int = Field(4, ge=1, le=10_000)
    """Uploads of the largest size at a time, shared by front ends, at least one each: the memory for bodies. Smaller
    ones share it, eight times as many at most; they have model slots in addition to `max_streams`."""

    # Access

    api_keys: tuple[SecretStr, ...] = ()
    """Keys that clients must send. Without keys anyone who reaches the server can use it."""
    api_keys_file: Path | None = None
    """File of hashed keys with quotas and origins, as `tutti keys` writes it; read again when it changes."""
    max_streams_per_key: int | None = Field(None, ge=1, le=1_000_000)
    """Calls that a key may have open at a time, unless the file says otherwise. By default unlimited."""
    max_openings_per_s: Literal["auto", "off"] | Annotated[float, Field(ge=0.01, le=1e6)] = "auto"
    """Openings of streams a second for one key or address, after a burst: server/coordination/limits.py."""
    token_keys: tuple[SecretStr, ...] = ()
    """Secrets that sign browser tokens: the first signs, all are accepted. By default one made at start."""
    token_keys_file: Path | None = None
    """File of secrets that sign browser tokens, one a line."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may use the server, in addition to its own; `*` for any. Without keys a public name of
    the server itself has to be listed, too."""
    admin_keys: tuple[SecretStr, ...] = ()
    """Keys for `/admin/…`. Without them it is closed, unless `admin_local` is set."""
    admin_keys_file: Path | None = None
    """File of SHA-256 digests of admin keys, one hexadecimal digest a line."""
    admin_local: bool = False
    """Open `/admin/…` to this machine without a key. A proxy on this machine would open it to everybody."""

    # Resuming

    resume_keys: tuple[SecretStr, ...] = ()
    """Secrets of resume tickets, shared by all replicas: the first seals, all open. By default one made at start."""
    resume_keys_file: Path | None = None
    """File of secrets of resume tickets, one a line, which all replicas share."""

    # Receipts

    receipt_key_file: Path | None = None
    """File of the key that signs receipts, as `tutti keys receipt` writes it: docs/receipts.md. Without it there are
    no receipts."""

    # Draining

    drain_timeout_s: float = Field(20.0, ge=0, le=DAY_S)
    """Seconds for streams to end after SIGTERM; the whole drain fits the 30 s of grace that Kubernetes gives."""

    # Usage

    usage_log: Path | None = None
    """Folder for usage records, which `tutti usage` adds up: docs/usage.md. By default none are written."""
    metrics_by_key: int = Field(0, ge=0, le=1_000)
    """Keys with a label of their own in `tutti_key_…` metrics; others count as `other`. 0: no metrics by key."""

    # Callbacks

    callback_hosts: tuple[str, ...] = ()
    """Hosts that results may be posted to by `callback`: names, `*.example.org`, and networks if their addresses are
    not public: docs/callbacks.md. Without them `callback` is refused."""
    callback_folder: Path | None = None
    """Folder in which results and recordings wait until they are delivered, also after a restart."""
    callback_secret: SecretStr | None = None
    """Secret that signs callbacks as Standard Webhooks does, `whsec_` and base64. Without it they have no signature."""

    # Twilio

    twilio_forward_url: Annotated[str, url_of("wss", "ws")] | None = None
    """WebSocket URL that receives the text of Twilio calls."""
    twilio_auth_token: SecretStr | None = None
    """Auth token of the Twilio account. With it only requests that Twilio signed are accepted, without an API key."""
    twilio_public_url: Annotated[str, url_of("wss", "ws", "https", "http")] | None = None
    """URL that Twilio dials, if a proxy changes it: signatures contain it."""

    # Logs and traces

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level of log lines."""
    log_format: Literal["console", "json"] = "console"
    """Form of log lines."""
    access_log: bool = True
    """One line for each HTTP request; those of probes at level debug."""
    commit: str = "unknown"
    """Commit of the build, for the metric `tutti_build_info`."""

    @field_validator("host")
    @classmethod
    def _read_host(cls, given: str) -> str:
        """Let an address have brackets, as in a URL."""
        return listen_host(given)

    @field_validator(
        "api_keys", "token_keys", "resume_keys", "admin_keys", "allowed_origins", "callback_hosts", mode="before"
    )
    @classmethod
    def _read_list(cls, given: Any) -> Any:
        """Let a list be JSON, or texts with commas, spaces or new lines between them."""
        return listed(given) if isinstance(given, str) else given

    @model_validator(mode="before")
    @classmethod
    def _name_models(cls, given: Any) -> Any:
        """Let `model` be one path, or several models as `NAME=PATH`."""
        model = given.get("model")
        texts = [str(text) for text in model] if isinstance(model, (list, tuple)) and model else [str(model or "")]
        named = len(texts) > 1 or is_named(texts[0])
        if given.get("models_file") is not None and (model or given.get("models")):
            raise bad_setting("models_file", "cannot be combined with --model, TUTTI_MODEL or TUTTI_MODELS")
        if named:
            try:
                return given | {"model": None, "models": named_models(texts)}
            except ValueError as error:
                raise bad_setting("model", str(error)) from None
        return given | {"model": texts[0] or None} if isinstance(model, (list, tuple)) else given

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if self.sagemaker and (self.api_keys or self.api_keys_file is not None):
            raise bad_setting("sagemaker", "cannot be combined with API keys, which clients of SageMaker cannot send")
        for name, other in NEEDED.items():
            if getattr(self, name) and not getattr(self, other):
                raise bad_setting(name, f"needs {spelled(other)}; set both, or leave this one out")
        if self.decoder == "greedy" and not (self.models or self.models_file):
            for name in ("beams", "lm"):
                if getattr(self, name) not in (None, "off"):
                    raise bad_setting(name, "cannot be combined with --decoder greedy; leave one of the two out")
        return self

    def of_models(self) -> tuple[tuple[ModelEntry | None, Settings], ...]:
        """Return each model to serve with settings of its own, the default first; None stands for `model`.

        If no model is named, those that ship: the default, and on demand the others. Raises: SettingsError.
        """
        entries = read_models(self.models_file) if self.models_file is not None else self.models
        if not entries:
            others = SHIPPED_ON_DEMAND if self.model is None else ()
            return ((None, self), *((entry, self._of_shipped(entry)) for entry in others))
        return tuple((entry, self.of_model(entry)) for entry in entries)

    def _of_shipped(self, entry: ModelEntry) -> Settings:
        """Return the settings of a shipped model alone: the language model's file, if any, is of English words."""
        english = entry.languages == ("en",)
        return self.of_model(entry).model_copy(update={"lm": self.lm if english or self.lm == "off" else None})

    @property
    def live_finals(self) -> Literal["fast", "context", "accurate"]:
        """Finals of most live streams that do not ask."""
        return "context" if self.finals == "auto" else self.finals

    @property
    def whisper(self) -> Path | None:
        """Folder of the Whisper model that reads finished segments, if there is one."""
        return None if self.second_pass is None else folder_of(self.second_pass)

    @property
    def of_default(self) -> Settings:
        """The settings of the default model alone, for programs that run one. Raises: SettingsError."""
        entry, own = self.of_models()[0]
        return own if entry is None else own.model_copy(update={"models": (entry,)})

    def of_model(self, entry: ModelEntry | None) -> Settings:
        """Return the settings of one model alone."""
        own = {} if entry is None else entry.own
        return self.model_copy(update={**own, "models": (), "models_file": None})

    @property
    def addresses(self) -> dict[str, ListenAddress]:
        """The addresses to listen on, by the names of their settings; that of the main port is the first."""
        ports = {"port": self.port, "vosk_port": self.vosk_port, "metrics_port": self.metrics_port}
        own = {"wyoming_port": self.wyoming_port, "audiosocket_port": self.audiosocket_port}
        listened = {name: ListenAddress(self.host, port) for name, port in ports.items() if port is not None}
        return listened | {name: listen_address(text) for name, text in own.items() if text is not None}

    @property
    def processes(self) -> int:
        """Processes that share what is limited for the server and held by each of them; `auto` is one process here."""
        return 1 if self.front_ends == "auto" else max(1, self.front_ends)

    @property
    def engine_timeout_s(self) -> float:
        """Seconds at one step after which an engine counts as hung, and its process ends."""
        return self.stall_timeout_s / STALLS if self.front_ends else 2 * self.stall_timeout_s

    @property
    def uploads_here(self) -> int:
        """Uploads of the largest size at a time of one process."""
        return math.ceil(self.max_uploads / self.processes)

    @property
    def slots(self) -> int:
        """Slots of a model for live streams: the most channels that can be open without resting."""
        return AUTO_SLOTS if self.max_streams == "auto" else self.max_streams

    @property
    def connected(self) -> int:
        """Most channels of live streams of a model, with those that rest."""
        return self.slots * (1 if self.rest_s == "off" else CONNECTED_A_SLOT)

    @property
    def upload_slots(self) -> int:
        """Slots of a model for uploads, as many as they can need, so that they never take a live stream's."""
        return self.max_uploads * UPLOADS_A_PLACE * self.max_channels

    @property
    def forks_here(self) -> int:
        """Forks at a time of one process and model."""
        return max(1, FORK_SLOTS // self.processes)

    @property
    def fork_slots(self) -> int:
        """Slots of a model for forks, as many as all processes use, so that they never take a stream's."""
        return self.forks_here * self.processes

    @property
    def all_slots(self) -> int:
        """Slots of a model for streams."""
        return self.slots + self.upload_slots
