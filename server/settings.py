"""Settings of a replica. Read from arguments and `TUTTI_…` variables at the entry point, nowhere else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

from model.config import BEAMS, MAX_BEAMS
from server.addresses import listen_host
from server.model_entries import ModelEntry, is_named, named_models, read_models
from server.settings_variables import listed

SHIPPED_ON_DEMAND = (ModelEntry(name="tutti-mandarin", path=Path("tutti-mandarin"), on_demand=True),)
AUTO_SLOTS = 1_024  # more streams than one replica carries


def url_of(*schemes: str) -> AfterValidator:
    """Return the check of an address with one of these schemes."""

    def check(text: str) -> str:
        try:
            parts = urlsplit(text)
            valid = parts.scheme in schemes and parts.hostname and parts.port != 0 and not re.search(r"\s", text)
        except ValueError:  # a bad port, or bad brackets
            valid = None
        if not valid:
            raise ValueError(f"must be an address that begins with {' or '.join(f'{each}://' for each in schemes)}")
        return text

    return AfterValidator(check)


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

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65_535)

    model: Path | None = None  # None: the models that ship, below; NAME=PATH, with commas: `models`
    models: tuple[ModelEntry, ...] = ()  # the default first; none: `model` alone
    models_file: Path | None = None  # tables of models: server/model_entries.py
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "int8", "bf16", "fp32", "fp16"] = "auto"
    reproducible: bool = False
    threads: int = Field(0, ge=0)  # 0: all cores but one, which the event loop needs

    decoder: Literal["auto", "greedy", "beam"] = "auto"  # auto: beam where there is a language model
    beams: int = Field(BEAMS, ge=1, le=MAX_BEAMS)
    lm: Literal["off"] | Path | None = None  # None: the language model that ships with the program
    second_beams: Literal["off"] | Annotated[int, Field(ge=1, le=MAX_BEAMS)] = "off"  # of an ended segment
    second_lm: Path | None = None  # of the second decode; None: the first one's

    finals: Literal["fast", "accurate"] = "fast"  # of streams that do not say: server/recognition/session.py

    unload_idle_minutes: float | None = Field(None, gt=0)  # what was loaded on demand, after so long without a stream

    grammars: Path | None = None  # folder of LANGUAGE-NAME.arpa, besides those that ship

    max_streams: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"  # as many as it is thought to carry
    max_batch: int = Field(128, ge=1)
    policy: Literal["eager", "deadline", "single"] = "eager"
    latency_budget_ms: float = Field(100.0, gt=0)

    vad: Literal["off", "silero"] = "off"
    min_endpoint_ms: float = Field(400.0, ge=0)  # blank frames occur inside words: less than this cuts them apart
    accurate_endpoint_ms: float = Field(700.0, ge=0)  # the same for accurate finals: whole phrases are heard better
    silence_endpoint_ms: float | None = Field(2_400.0, gt=0)  # nothing said for so long closes an empty segment
    max_utterance_s: float = Field(30.0, gt=0)
    max_channels: int = Field(2, ge=1, le=20)

    idle_timeout_s: float = Field(10.0, gt=0)  # as the Deepgram service
    max_backlog_s: float = Field(30.0, gt=0)
    stall_timeout_s: float = Field(30.0, gt=0)  # without an answer from the engine
    write_timeout_s: float = Field(10.0, gt=0)  # for a client to take one frame
    drain_timeout_s: float = Field(20.0, ge=0)  # for streams to end; the whole fits Kubernetes' 30 s of grace
    drain_spread_s: float = Field(3.0, ge=0)  # over which the streams left are closed: not all to return at once
    drain_linger_s: float = Field(0.0, ge=0)  # at least so long "draining" is answered, for load balancers to notice
    engine_timeout_s: float = Field(60.0, gt=0)  # an engine that has been at one step for so long is given up
    handshake_timeout_s: float = Field(10.0, gt=0)  # for the head of a request to arrive
    max_session_s: float = Field(86_400.0, gt=0)  # of a live connection

    max_upload_bytes: int = Field(100 * 2**20, ge=1)
    upload_timeout_s: float = Field(120.0, gt=0)  # for a body to arrive
    min_upload_bytes_per_s: float = Field(1_000.0, gt=0)  # after ten seconds: below it the body ends with 408
    max_upload_s: float = Field(14_400.0, gt=0)  # a small body can decode to endless silence
    max_uploads: int = Field(4, ge=1)  # each holds its whole body in memory, and has slots besides `max_streams`

    api_keys: tuple[SecretStr, ...] = ()
    api_keys_file: Path | None = None  # a line a key: server/access/keys.py; read again when it changes
    max_openings_per_s: Literal["auto", "off"] | Annotated[float, Field(gt=0)] = "auto"  # server/access/opening_rate.py
    max_streams_per_key: int | None = Field(None, ge=1)  # where the file says nothing else; None: no quota
    token_keys: tuple[SecretStr, ...] = ()  # the first signs browser tokens, all are accepted; none: one of its own
    token_keys_file: Path | None = None  # one a line
    allowed_origins: tuple[str, ...] = ()  # of web pages, beside this server's own; "*": any

    resume_keys: tuple[SecretStr, ...] = ()  # of tickets: the first seals, all open; none: one of its own
    resume_keys_file: Path | None = None  # one a line
    resume_ttl_s: float = Field(300.0, gt=0)  # how old a ticket may be

    vosk_port: int | None = Field(None, ge=0, le=65_535)  # for vosk clients alone, without keys; None: /vosk only
    vosk_sample_rate: int = Field(8_000, ge=8_000, le=48_000)  # until a client says another one, as vosk-server's
    quiet_timeout_s: float = Field(60.0, gt=0)  # `idle_timeout_s` of protocols without a keep-alive message
    twilio_forward_url: Annotated[str, url_of("wss", "ws")] | None = (
        None  # ws:// or wss://, where the text of Twilio's calls goes
    )
    twilio_auth_token: SecretStr | None = None  # of the account: then only what Twilio signed is let in, without a key
    twilio_public_url: Annotated[str, url_of("wss", "ws", "https", "http")] | None = (
        None  # the URL that Twilio dials, where a proxy changes it
    )

    model_aliases: dict[str, str] = Field(default_factory=lambda: {"*": "default"})
    strict_models: bool = False
    lenient_features: bool = False  # ignore and name diarize and the like, which are refused otherwise; never `redact`

    admin_keys: tuple[SecretStr, ...] = ()  # for /admin/…
    admin_local: bool = False  # without admin keys: /admin for this machine; a proxy on it would let everybody in
    admin_keys_file: Path | None = None  # one sha256 hex digest a line

    otel_endpoint: Annotated[str, url_of("http", "https")] | None = (
        None  # OTLP over HTTP, e.g. http://127.0.0.1:4318; None: as OTEL_… variables say
    )
    commit: str = "unknown"  # of the build, for `tutti_build_info`
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"
    access_log: bool = True  # a line for each HTTP request; those of probes at level debug

    @field_validator("host")
    @classmethod
    def _read_host(cls, given: str) -> str:
        """Let an address have brackets, as in a URL."""
        return listen_host(given)

    @field_validator("api_keys", "token_keys", "resume_keys", "admin_keys", "allowed_origins", mode="before")
    @classmethod
    def _read_list(cls, given: Any) -> Any:
        """Let a list be JSON, or texts with commas, spaces or new lines between them."""
        return listed(given) if isinstance(given, str) else given

    @field_validator("models", "model_aliases", mode="before")
    @classmethod
    def _read_json(cls, given: Any) -> Any:
        """Let a table be JSON."""
        if not isinstance(given, str):
            return given
        try:
            return json.loads(given)
        except ValueError:
            raise ValueError("is not JSON") from None

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

    def of_models(self) -> tuple[tuple[ModelEntry | None, Settings], ...]:
        """Return each model to serve with settings of its own, the default first; None stands for `model`.

        If no model is named, those that ship: the English one, and on demand the others. Raises: SettingsError.
        """
        entries = read_models(self.models_file) if self.models_file is not None else self.models
        if not entries:
            others = SHIPPED_ON_DEMAND if self.model is None else ()
            of_words = {"lm": self.lm if self.lm == "off" else None, "second_lm": None}  # a file of words is English
            return ((None, self), *((entry, self.of_model(entry).model_copy(update=of_words)) for entry in others))
        return tuple((entry, self.of_model(entry)) for entry in entries)

    @property
    def of_default(self) -> Settings:
        """The settings of the default model alone, for programs that run one. Raises: SettingsError."""
        return self.of_models()[0][1]

    def of_model(self, entry: ModelEntry | None) -> Settings:
        """Return the settings of one model alone."""
        own = {} if entry is None else entry.own
        return self.model_copy(update={**own, "models": (), "models_file": None})

    @property
    def slots(self) -> int:
        """Slots of a model for live streams: the most channels that can be open."""
        return AUTO_SLOTS if self.max_streams == "auto" else self.max_streams

    @property
    def upload_slots(self) -> int:
        """Slots of a model for uploads, as many as they can need, so that they never take a live stream's."""
        return self.max_uploads * self.max_channels

    @property
    def all_slots(self) -> int:
        """Slots of a model."""
        return self.slots + self.upload_slots


def bad_setting(name: str, problem: str) -> PydanticCustomError:
    """Return the error of one setting, for validators of several: `settings` of its context names the setting."""
    return PydanticCustomError("setting", "{problem}", {"problem": problem, "settings": (name,)})
