"""An engine host: a process with the acoustic models, whose engines serve the streams of its front ends.

It has no clients and decodes nothing. Its event loop serves only the control channel; the engine threads read and write
the front ends' data sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import structlog

from batching.errors import EngineDown
from batching.thread.step_token import StepToken
from batching.wire.engine_server import EngineServer
from model.facts import AcousticModel
from model.machine.instructions import instruction_set
from model.machine.runtime import shorten_switches, steps_at_once
from server.errors import ServerNotReady, UnknownModel
from server.models.engine_source import BatchedModel, EnginePlan
from server.models.loading import AUXILIARY_HZ, auxiliary_models, load_acoustic
from server.operations.dependent_rows import warn_of_dependent_rows
from server.operations.drain import SPREAD_S
from server.operations.gc_schedule import freeze_loaded_objects, freeze_what_came
from server.operations.merged_metrics import snapshot
from server.operations.metrics import process_registry
from server.processes import messages
from server.processes.child import ChildProcess, run_child
from server.processes.control import Parcel
from server.processes.messages import MESSAGES, name_of
from server.settings import Settings

MODEL = "model"  # kind of an engine, as `Auxiliary`; its name is that, a space, and the model's name
LOOK_S = 0.5  # interval of reports of the longest step
ORPHANED_S = 8.0  # wait after the supervisor's end, in addition to the drain of the front ends
STOP_S = 2.0
UNUSED_S = 5.0  # time without a front end after which a model that had one is unloaded
NICENESS = 10  # niceness of threads that load while streams are served, here or by another host
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.engine_host")


class EngineHost:
    """Models and engines of this process; used only on its event loop, loads models on threads."""

    def __init__(self, process: ChildProcess) -> None:
        """Raises: ModelError if an auxiliary model cannot be loaded."""
        self._channel = process.channel
        self._settings = settings = process.settings
        self._entries = {name_of(entry): (entry, own) for entry, own in settings.of_models()}
        self._models: dict[str, asyncio.Task[AcousticModel]] = {}
        self._engines: dict[str, asyncio.Task[EngineServer]] = {}
        self._auxiliary = auxiliary_models(settings)
        self._step_token = StepToken() if _steps_at_once(settings) == 1 else None
        self._registry = process_registry()
        self._attaching: set[asyncio.Task[None]] = set()
        self._used_s: dict[str, float] = {}  # by engine: when it last had a front end
        self._in_background = process.in_background
        self.stopped = asyncio.Event()
        process.take, process.answer = self._take, self._answer
        process.on_orphaned = self._orphaned

    async def begin(self) -> None:
        """Load the models that are not loaded on demand, and start their engines. Raises: ModelError, SettingsError."""
        for name, (entry, _) in self._entries.items():
            if entry is None or not entry.on_demand:
                await self._engine(f"{MODEL} {name}")
                if (await self._model(name)).config.sample_rate == AUXILIARY_HZ:
                    for kind in self._auxiliary:
                        await self._engine(f"{kind} {name}")
        freeze_loaded_objects()
        self._in_background = True  # streams are served from now on
        self._channel.tell(messages.Ready())
        self._report()

    def _report(self) -> None:
        now, longest = time.perf_counter(), 0.0
        for engine in self._running():
            since = engine.busy_since()
            longest = max(longest, 0.0 if since is None else now - since)
            if not engine.alive:
                _log.critical("an engine has ended: this host ends", error=repr(engine.failure))
                os._exit(1)
        self._channel.tell(messages.Busy(longest))
        self._look_for_unused(now)
        asyncio.get_running_loop().call_later(LOOK_S, self._report)

    def _look_for_unused(self, now: float) -> None:
        """Unload models that no front end uses any more, except the default model."""
        default = next(iter(self._entries))
        for name, task in list(self._engines.items()):
            kind, _, model = name.partition(" ")
            if model == default or not task.done() or task.exception():
                continue
            if task.result().connections:
                self._used_s[name] = time.perf_counter()
            elif name in self._used_s and now - self._used_s[name] > UNUSED_S:
                self._unload(name, kind, model)

    def _unload(self, name: str, kind: str, model: str) -> None:
        del self._used_s[name]
        engine = self._engines.pop(name).result()
        self._channel.tell(messages.Unloaded(name))
        if kind == MODEL:
            self._models.pop(model, None)
            _log.info("weights freed", model=model)
        task = asyncio.ensure_future(asyncio.to_thread(_stop, engine))
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)

    def _running(self) -> list[EngineServer]:
        return [task.result() for task in self._engines.values() if task.done() and not task.exception()]

    # Messages

    def _take(self, parcel: Parcel) -> None:
        match parcel.message:
            case messages.Attach(engine):
                for descriptor in parcel.descriptors:  # none if it was lost: the front end then connects again
                    task = asyncio.get_running_loop().create_task(self._attach(engine, descriptor))
                    self._attaching.add(task)
                    task.add_done_callback(self._attaching.discard)
            case messages.StopNow():
                self.stopped.set()

    async def _answer(self, parcel: Parcel) -> Parcel:
        match parcel.message:
            case messages.Describe(name):
                self._look_for_unused(math.inf)  # a front end that loads a model expects the files of now
                model = await self._model(name)
                return Parcel(pickle.dumps(model.facts))
            case messages.Prepare(engine):
                await self._engine(engine)
                self._used_s.setdefault(engine, time.perf_counter())
                return Parcel(None)
            case messages.Metrics():
                return Parcel(snapshot(self._registry))
            case other:
                raise TypeError(f"an engine host does not answer {type(other).__name__}")

    async def _attach(self, name: str, descriptor: int) -> None:
        """Pass a front end's socket to its engine; close it if there is no engine, which the front end detects."""
        end = socket.socket(fileno=descriptor)
        try:
            (await self._engine(name)).attach(end)
            self._used_s[self._full_name(name)] = time.perf_counter()
        except Exception:  # noqa: BLE001 - a model that fails must not end the engines of others
            _log.exception("no engine for a front end", engine=name)
            end.close()

    # Loading

    async def _model(self, name: str) -> AcousticModel:
        """Return a model, loaded once. Raises: UnknownModel, ServerNotReady."""
        name = self._key(name)
        task = self._models.get(name)
        if task is None:
            _, own = self._entries[name]
            load = partial(load_acoustic, own)
            task = asyncio.ensure_future(asyncio.to_thread(partial(_nicely, load) if self._in_background else load))
            self._models[name] = task
        try:
            return await asyncio.shield(task)
        except Exception:
            self._models.pop(name, None)
            raise

    def _key(self, name: str) -> str:
        """Return the name of a model's entry. Raises: UnknownModel."""
        if name not in self._entries and "" not in self._entries:
            raise UnknownModel(f"no model is named {name!r}")
        return name if name in self._entries else ""

    def _full_name(self, name: str) -> str:
        """Return the name of an engine by the entry of its model. Raises: UnknownModel."""
        kind, _, model = name.partition(" ")
        return f"{kind} {self._key(model)}"

    async def _engine(self, name: str) -> EngineServer:
        """Return a running engine, made once. Raises: as `_model`."""
        name = self._full_name(name)
        task = self._engines.get(name)
        if task is None:
            task = self._engines[name] = asyncio.ensure_future(self._start(name))
        try:
            return await asyncio.shield(task)
        except Exception:
            self._engines.pop(name, None)
            raise

    async def _start(self, name: str) -> EngineServer:
        kind, _, model_name = name.partition(" ")
        acoustic = await self._model(model_name)
        model: BatchedModel = acoustic
        plan, digest = EnginePlan.of(self._settings, acoustic.config, name), acoustic.facts.digest
        if kind != MODEL:
            small = next((one for auxiliary, one in self._auxiliary.items() if auxiliary == kind), None)
            if small is None:
                raise ServerNotReady(f"no {kind} model is loaded")
            model, digest = small, small.digest
            plan = EnginePlan.of(self._settings, acoustic.config, name, small.step_samples)
        engine = EngineServer(
            await asyncio.to_thread(plan.slots_of, model),
            policy=plan.policy,
            max_queued=plan.max_queued,
            max_streams=plan.streams,
            step_s=plan.step_s,
            warm_up=True,
            digest=digest,
            step_token=None if acoustic.facts.device.type == "cuda" else self._step_token,
            name=name,
        )
        engine.start()
        await asyncio.to_thread(engine.wait_warm)
        self._channel.tell(messages.Loaded(name, engine.model))
        if kind == MODEL:
            how = {"precision": acoustic.facts.precision, "device": str(acoustic.facts.device)}
            _log.info("model loaded", model=acoustic.config.name, instructions=instruction_set(), **how)
            warn_of_dependent_rows(acoustic, self._settings.reproducible)
        freeze_what_came()
        return engine

    # End

    def _orphaned(self) -> None:
        """Handle the supervisor's end: serve the front ends until they are drained."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.drain_timeout_s + SPREAD_S + ORPHANED_S

        def look() -> None:
            if loop.time() > until or not any(engine.connections for engine in self._running()):
                self.stopped.set()
            else:
                loop.call_later(LOOK_S, look)

        look()

    async def stop(self) -> None:
        """End the engines; a thread that hangs ends with the process."""
        for engine in self._running():
            await asyncio.to_thread(_stop, engine)


def _steps_at_once(settings: Settings) -> int:
    """Return how many engines of this host can compute at once on the cores that the other processes leave."""
    assert settings.front_ends != "auto", "it was chosen before"
    assert settings.engines != "auto", "it was chosen before"
    return steps_at_once(settings.threads, settings.front_ends + (settings.engines - 1) * settings.threads)


def _stop(engine: EngineServer) -> None:
    """End an engine; a thread that hangs is abandoned, as at the end of the process."""
    with contextlib.suppress(EngineDown):
        engine.stop(STOP_S)


def _nicely(load: Callable[[], AcousticModel]) -> AcousticModel:
    """Load at a lower priority of this thread: on Linux, niceness is per thread."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    return load()


async def work(process: ChildProcess) -> int:
    """Run the engines until the supervisor asks this process to end; return the exit status."""
    shorten_switches()
    host = EngineHost(process)
    await host.begin()
    await host.stopped.wait()
    await host.stop()
    return 0


if __name__ == "__main__":
    sys.exit(run_child(MESSAGES, work))
