"""Batching for recurrent models: many streams' steps merged into batches, each stream's state kept apart.

Generic: it knows torch tensors, and nothing of audio, sockets or metrics. Start with `batcher.py`.
"""

from batching.batcher import Batcher, Pace, Pending, Policy, StreamId
from batching.engine import Engine
from batching.errors import (
    AlreadyOpen,
    BatchingError,
    EngineDown,
    Misuse,
    Overloaded,
    PoolFull,
    QueueFull,
    RepeatedHandle,
    StaleHandle,
    StepFailed,
    UnknownStream,
    WrongInput,
    WrongState,
)
from batching.events import BatchDone, EngineEvent, EngineStopped, StateExported, StreamClosed, StreamFailed, WarmedUp
from batching.pool import Handle, StatePool
from batching.service_times import ServiceTimes
from batching.step_model import RowSpec, SlabModel, StepModel, TensorSpec

__all__ = [
    "AlreadyOpen",
    "BatchDone",
    "Batcher",
    "BatchingError",
    "Engine",
    "EngineDown",
    "EngineEvent",
    "EngineStopped",
    "Handle",
    "Misuse",
    "Overloaded",
    "Pace",
    "Pending",
    "Policy",
    "PoolFull",
    "QueueFull",
    "RepeatedHandle",
    "RowSpec",
    "ServiceTimes",
    "SlabModel",
    "StaleHandle",
    "StateExported",
    "StatePool",
    "StepFailed",
    "StepModel",
    "StreamClosed",
    "StreamFailed",
    "StreamId",
    "TensorSpec",
    "UnknownStream",
    "WarmedUp",
    "WrongInput",
    "WrongState",
]
