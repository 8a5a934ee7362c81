"""Control loop: scales the fleet with its load and updates HAProxy's servers.

Ray places the replicas' actors and reports lost ones. Audio does not pass through the controller: without it HAProxy
and the replicas continue unchanged.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
import structlog
from ray.exceptions import GetTimeoutError, RayError

from deploy.ray.backends import HAProxyError, Places, RuntimeApi
from deploy.ray.fleet import Fleet, Rule, Timeouts
from deploy.ray.replica import Figures, Replica

ANSWERS_WITHIN_S = 2.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.ray")


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a cluster. With `host` None, replicas use the address of their node."""

    haproxy: str
    rule: Rule = field(default_factory=Rule)
    timeouts: Timeouts = field(default_factory=Timeouts)
    places: int = 16
    host: str | None = None
    cpus: float = 2.0
    gpus: float = 0.0
    serve_options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    period_s: float = 1.0


class Controller:
    """Controller of a cluster; `turn` is one iteration of its loop."""

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.monotonic) -> None:
        self._plan = plan
        self._clock = clock
        self._places = Places(plan.places)
        self._haproxy = RuntimeApi(plan.haproxy)
        self.fleet = Fleet(plan.rule, plan.timeouts)
        self._actors: dict[str, Any] = {}
        self._numbers = itertools.count(1)
        self._last_summary = ""
        self._in_step = False  # False: HAProxy may have been restarted, or have another controller's replicas

    def run(self, stop: Callable[[], bool]) -> None:
        """Run until `stop()` is true, then drain all replicas and wait until they have ended."""
        while not stop():
            self.turn()
            time.sleep(self._plan.period_s)
        for name in self.fleet.drain_all():
            self._drain(name)
        while len(self.fleet):
            self._ask_replicas()
            self._update_haproxy()
            time.sleep(self._plan.period_s)

    def turn(self) -> None:
        """Query the replicas, then start, drain or end replicas and update HAProxy."""
        self._ask_replicas()
        orders = self.fleet.orders(self._clock())
        for name in orders.end:
            _log.warning("replica lost: no answer", replica=name)
            self._end(name)
        for name in orders.drain:
            _log.info("replica draining", replica=name)
            self._drain(name)
        for _ in range(orders.start):
            self._start()
        self._update_haproxy()
        if self._last_summary != self.fleet.summary:
            self._last_summary = self.fleet.summary
            _log.info(self._last_summary)

    def _ask_replicas(self) -> None:
        asked = {name: actor.figures.remote() for name, actor in self._actors.items()}
        answers: Sequence[Any] = list(asked.values())
        if answers:
            ray.wait(list(answers), num_returns=len(answers), timeout=ANSWERS_WITHIN_S)
        for name, answer in asked.items():
            try:
                figures: Figures = ray.get(answer, timeout=0)
            except GetTimeoutError:
                continue  # not placed yet, or silent: timeouts decide
            except RayError as error:
                _log.warning("replica lost", replica=name, error=type(error).__name__)
                self.fleet.gone(name)
                self._end(name)
                continue
            self.fleet.answered(name, figures, self._clock())
            if figures.ended:
                _log.info("replica ended", replica=name)
                self._end(name)

    def _start(self) -> None:
        name = f"tutti-{next(self._numbers)}"
        plan = self._plan
        options = {"num_cpus": plan.cpus, "num_gpus": plan.gpus, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        actor = ray.remote(_Placed).options(**options).remote(plan.host, plan.serve_options, dict(plan.environment))
        self._actors[name] = actor
        self.fleet.started(name, self._clock())
        _log.info("replica starting", replica=name)

    def _drain(self, name: str) -> None:
        self._actors[name].drain.remote()

    def _end(self, name: str) -> None:
        actor = self._actors.pop(name, None)
        if actor is not None:
            ray.kill(actor)

    def _update_haproxy(self) -> None:
        try:
            changes = self._places.change(self.fleet.backends)
            for command in changes if self._in_step else self._places.everything():
                self._haproxy.send(command)
            self._in_step = True
        except HAProxyError as error:
            self._in_step = False
            _log.warning("HAProxy update failed", error=str(error))


class _Placed(Replica):
    """A replica that uses the address of its node."""

    def __init__(self, host: str | None, options: Sequence[str], environment: Mapping[str, str]) -> None:
        node = ray.util.get_node_ip_address()
        super().__init__(host or node, options, environment, node)
