"""Messages of the control channels, each between the supervisor and one child. Both ends run the same version."""

from __future__ import annotations

from msgspec import Struct

from server.configuration.models_file import ModelEntry
from server.coordination.messages import Notice, RefuseHint, Request
from server.processes.control import Fault

# From the supervisor to a child


class Begin(Struct, tag=True, frozen=True):
    """First message: the child's settings, pickled."""

    settings: bytes
    in_background: bool = False  # load at a lower priority: another host serves


class Accepted(Struct, tag=True, frozen=True):
    """A connection of a client, as a descriptor, and the setting of the port on which it was accepted."""

    port: str


class Attach(Struct, tag=True, frozen=True):
    """A front end's data socket, as a descriptor, for an engine of this host."""

    engine: str


class EngineMoved(Struct, tag=True, frozen=True):
    """Another engine host serves this front end from now on: connect to it."""


class Drain(Struct, tag=True, frozen=True):
    """Drain, and end when no stream is left. From a front end, on behalf of an operator: drain the whole server."""


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


# Requests, whose answers are values of builtin types


class Describe(Struct, tag=True, frozen=True):
    """Load a model, unless it is loaded, and return its pickled `ModelFacts`. The supervisor asks the host."""

    model: str


class Connect(Struct, tag=True, frozen=True):
    """Return the data socket of an engine once a host is ready. Raises: EngineDead."""

    engine: str


class Prepare(Struct, tag=True, frozen=True):
    """Start an engine, unless it runs; `Loaded` is sent before. Raises: ModelError, UnknownModel."""

    engine: str


class Metrics(Struct, tag=True, frozen=True):
    """Metrics of this child, for `Totals`; from a front end: of all processes, in Prometheus's text format."""


class Report(Struct, tag=True, frozen=True):
    """Report of this front end, JSON; from a front end: the reports of all."""

    kind: str  # "drain", "models" or "status"


class ChangeModel(Struct, tag=True, frozen=True):
    """Load or unload a model in every front end. Raises: UnknownModel, ModelStays, ServerNotReady."""

    name: str
    load: bool


class RestartEngine(Struct, tag=True, frozen=True):
    """Replace the engine hosts by new ones; return the seconds of their start. Raises: ServerNotReady, ModelStays."""


OF_PROCESSES = (
    Begin | Accepted | Attach | EngineMoved | Drain | StopNow | Reload | Ready | Loaded | Unloaded | Failed | Load
    | Busy | Drained | Describe | Connect | Prepare | Metrics | Report | ChangeModel | RestartEngine
)  # fmt: skip
MESSAGES = OF_PROCESSES | Request | Notice | RefuseHint
"""Types of all messages on a control channel."""


def name_of(entry: ModelEntry | None) -> str:
    """Return the name by which processes ask for a model; empty for the model without an entry."""
    return "" if entry is None else entry.name
