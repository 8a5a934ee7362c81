"""The Ray fleet on this machine: two nodes, a real HAProxy, and live streams; a node is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import ray
from ray.cluster_utils import Cluster

import deploy.ray
from deploy.ray.backends import HAProxyError, RuntimeApi
from deploy.ray.controller import Controller, Plan
from deploy.ray.fleet import Rule
from loadtest import served
from tests.support.needs import missing
from tutti_asr_lab.trials.proxies import Ports
from tutti_asr_lab.trials.replicas import environment
from tutti_asr_lab.trials.streams import Audio, Outcome, audios, play_resumable

CONFIG = Path(deploy.ray.__file__).parent / "haproxy.cfg"
READY_WITHIN_S = 10.0
STORE_BYTES = 80 * 2**20  # minimum; Ray's object store is not used
WITHIN_S = 240.0  # a replica may take minutes to start on a busy machine
LOOKS_EVERY_S = 0.2


@contextlib.contextmanager
def edge() -> Iterator[tuple[str, str]]:
    """Start HAProxy with the configuration of deploy/ray on free ports; yields URL and address of the runtime API."""
    program = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/sbin:/bin") or missing("haproxy not installed")
    ports = Ports.free()
    url, control = f"ws://127.0.0.1:{ports.audio}", f"127.0.0.1:{ports.control}"
    text = CONFIG.read_text(encoding="utf-8").replace("127.0.0.1:9999", control)

    def answers() -> bool:
        with contextlib.suppress(HAProxyError):
            RuntimeApi(control).send("show info")
            return True
        return False

    with tempfile.TemporaryDirectory(prefix="tutti-edge-") as name, tempfile.TemporaryFile() as output:
        config = Path(name) / "haproxy.cfg"
        config.write_text(text.replace("bind :8080", f"bind 127.0.0.1:{ports.audio}"), encoding="utf-8")
        process = served.start([str(program), "-f", str(config)], output)
        try:
            served.wait_until_ready(process, answers, output, name="haproxy", within_s=READY_WITHIN_S)
            yield url, control
        finally:
            served.stop(process, within_s=0.0)


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[Cluster, Any]]:
    """Start a local cluster: a head with room for one replica and a spare, and a node that can be lost."""
    node = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **node})
    try:
        second = cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
        ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
        yield cluster, second
    finally:
        ray.shutdown()
        cluster.shutdown()


class Fleet:
    """The controller in a separate thread."""

    def __init__(self, plan: Plan) -> None:
        self._controller = Controller(plan)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._controller.run, args=(self._stop.is_set,), name="controller")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(WITHIN_S)

    @property
    def ready(self) -> int:
        """Number of ready replicas."""
        return sum(backend.state == "ready" for backend in self._controller.fleet.backends.values())

    async def wait(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition."""
        async with asyncio.timeout(WITHIN_S):
            while not holds():  # noqa: ASYNC110 - the controller runs in a thread
                await asyncio.sleep(LOOKS_EVERY_S)


def lose_a_node(streams: int, stream_s: float) -> tuple[list[Outcome], dict[str, str]]:
    """Grow from one replica to two under streams, lose the node of one, grow again, and shrink when they have ended.

    Returns the outcomes of all streams, and each audio's text alone. A replica takes `streams`.
    """
    options = ("--decoder", "greedy", "--threads", "1", "--drain-timeout-s", "5", "--max-streams", str(streams))
    rule = Rule(1, 2, share=0.7, down_after_s=5.0)
    with two_nodes() as (cluster, node), edge() as (url, control):
        plan = Plan(
            control, rule, host="127.0.0.1", cpus=1, serve_options=options, environment=environment(), period_s=0.5
        )
        with Fleet(plan) as fleet:
            return asyncio.run(_lose_a_node(url, fleet, cluster, node, audios(streams, stream_s, 1)))


async def _lose_a_node(
    url: str, fleet: Fleet, cluster: Cluster, node: Any, played: list[Audio]
) -> tuple[list[Outcome], dict[str, str]]:
    loop = asyncio.get_running_loop()
    await fleet.wait(lambda: fleet.ready == 1)
    texts = {audio.name: (await play_resumable(url, audio, realtime=False)).text for audio in played}
    streams: list[asyncio.Task[Outcome]] = []

    async def later(audio: Audio, delay_s: float) -> Outcome:
        await asyncio.sleep(delay_s)
        return await play_resumable(url, audio)

    def play() -> None:
        streams.extend(loop.create_task(later(audio, 0.1 * number)) for number, audio in enumerate(played))

    def grown() -> bool:
        """Whether there are two replicas; plays new streams if a slow machine needs longer than they last."""
        if fleet.ready < 2 and all(stream.done() for stream in streams):
            play()
        return fleet.ready == 2

    await fleet.wait(grown)
    play()
    await asyncio.sleep(5.0)  # until both replicas have streams
    await asyncio.to_thread(cluster.remove_node, node, allow_graceful=False)
    await fleet.wait(lambda: fleet.ready == 1)
    await fleet.wait(grown)
    outcomes = list(await asyncio.gather(*streams))
    await fleet.wait(lambda: fleet.ready == 1)
    return outcomes, texts
