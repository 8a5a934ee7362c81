"""Batching for recurrent models: merges steps of many streams into batches and keeps one state per stream.

Generic: it imports only numpy and does not depend on audio, sockets or metrics. Start with `batcher.py`.
"""

from batching.batcher import Batcher, Pending, Policy, StreamId
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
    WrongFrame,
    WrongInput,
    WrongState,
)
from batching.events import BatchDone, EngineEvent, EngineStopped, StateExported, StreamClosed, StreamFailed, WarmedUp
from batching.policy.pace import Pace
from batching.policy.service_times import ServiceTimes
from batching.pool import Handle, SlotPool
from batching.slot_model import SlotModel
from batching.thread.step_token import StepToken

__all__ = [
    "AlreadyOpen", "BatchDone", "Batcher", "BatchingError", "Engine", "EngineDown", "EngineEvent", "EngineStopped",
    "Handle", "Misuse", "Overloaded", "Pace", "Pending", "Policy", "PoolFull", "QueueFull", "RepeatedHandle",
    "ServiceTimes", "SlotModel", "SlotPool", "StaleHandle", "StateExported", "StepFailed", "StepToken",
    "StreamClosed", "StreamFailed", "StreamId", "UnknownStream", "WarmedUp", "WrongFrame", "WrongInput", "WrongState",
]  # fmt: skip
