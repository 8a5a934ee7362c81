"""Messages of the control channels, each between the supervisor and one child. Both ends run the same version."""

from __future__ import annotations

from msgspec import Struct

from server.configuration.models_file import ModelEntry
from server.coordination.messages import Answer, Notice, RefuseHint, Request
from server.processes.control import Fault

# From the supervisor to a child


class Begin(Struct, tag=True, frozen=True):
    """First message: the child's settings, pickled."""

    settings: bytes
    in_background: bool = False  # load at a lower priority: another host serves


class Accepted(Struct, tag=True, frozen=True):
    """A connection of a client, as a descriptor, and the port on which it was accepted."""

    port: str


class Attach(Struct, tag=True, frozen=True):
    """A front end's data socket, as a descriptor, for an engine of this host."""

    engine: str


class EngineMoved(Struct, tag=True, frozen=True):
    """Another engine host serves this front end from now on: connect to it."""


class StartDrain(Struct, tag=True, frozen=True):
    """Drain, and end when no stream is left."""


class StopNow(Struct, tag=True, frozen=True):
    """End at once."""


class Reload(Struct, tag=True, frozen=True):
    """Read the file of keys again, as after SIGHUP."""


# From a child to the supervisor


class Ready(Struct, tag=True, frozen=True):
    """The child can work."""


class Loaded(Struct, tag=True, frozen=True):
    """An engine of this host has started; `model` is `EngineServer.model`."""

    engine: str
    model: str


class Unloaded(Struct, tag=True, frozen=True):
    """An engine of this host has ended, because no front end used it."""

    engine: str


class Failed(Struct, tag=True, frozen=True):
    """The child cannot start, because of this error."""

    fault: Fault


class Load(Struct, tag=True, frozen=True):
    """Open connections of a front end, and how many it has received since its start."""

    connections: int
    received: int


class Busy(Struct, tag=True, frozen=True):
    """Longest time in seconds that an engine of this host has been at its present work; 0 without work."""

    seconds: float


class Drained(Struct, tag=True, frozen=True):
    """The drain of this front end is over; it answers requests until it is asked to end."""


class DrainAll(Struct, tag=True, frozen=True):
    """Drain the whole server; sent by the front end that received the operator's request."""


# Requests, and their answers


class Describe(Struct, tag=True, frozen=True):
    """Load a model, unless it is loaded, and return its facts. Answer: `Described`. The supervisor asks the host."""

    model: str


class Described(Struct, tag=True, frozen=True):
    """The `ModelFacts` of a model, pickled."""

    model: bytes


class Connect(Struct, tag=True, frozen=True):
    """Connect to an engine once a host is ready. Answer: `Done` with the data socket. Raises EngineDead."""

    engine: str


class Prepare(Struct, tag=True, frozen=True):
    """Start an engine, unless it runs. Answer: `Done`, after `Loaded`. Raises: ModelError, UnknownModel."""

    engine: str


class Collect(Struct, tag=True, frozen=True):
    """Metrics of all processes. Answer: `Bytes`, in Prometheus's text format."""


class Snapshot(Struct, tag=True, frozen=True):
    """Metrics of this child. Answer: `Bytes`."""


class Gather(Struct, tag=True, frozen=True):
    """Reports of all front ends. Answer: `Reports`."""

    kind: str  # "drain", "models" or "status"


class ReportOf(Struct, tag=True, frozen=True):
    """A report of this front end. Answer: `Bytes`, JSON."""

    kind: str


class ChangeModel(Struct, tag=True, frozen=True):
    """Load or unload a model in every front end. Answer: `Done`. Raises UnknownModel, ModelStays, ServerNotReady."""

    name: str
    load: bool


class RestartEngine(Struct, tag=True, frozen=True):
    """Replace the engine hosts by new ones. Answer: `Restarted`. Raises ServerNotReady, ModelStays."""


class Restarted(Struct, tag=True, frozen=True):
    """Seconds that the new hosts needed until they were ready."""

    seconds: float


class Bytes(Struct, tag=True, frozen=True):
    """Bytes as an answer."""

    data: bytes


class Reports(Struct, tag=True, frozen=True):
    """One report of each front end, JSON."""

    each: tuple[bytes, ...]


class Done(Struct, tag=True, frozen=True):
    """An answer without content."""


OF_PROCESSES = (
    Begin | Accepted | Attach | EngineMoved | StartDrain | StopNow | Reload | Ready | Loaded | Unloaded | Failed | Load
    | Busy | Drained | DrainAll | Describe | Described | Connect | Prepare | Collect | Snapshot | Gather | ReportOf
    | ChangeModel | RestartEngine | Restarted | Bytes | Reports | Done
)  # fmt: skip


MESSAGES = OF_PROCESSES | Request | Notice | Answer | RefuseHint
"""Types of all messages on a control channel."""
HTTP, VOSK, METRICS = "http", "vosk", "metrics"
"""Names of the ports on which connections are accepted."""


def name_of(entry: ModelEntry | None) -> str:
    """Return the name by which processes ask for a model; empty for the model without an entry."""
    return "" if entry is None else entry.name
