"""The simulated fleet against three real replicas: calls of half a second, at the same rate and under one rule."""

import random
import threading
import time
from dataclasses import replace

import pytest
from websockets.exceptions import InvalidStatus

from tutti_asr_lab.simulation.autoscaling import Autoscaler, ScalingRule
from tutti_asr_lab.simulation.fleet import Fleet, FleetSettings
from tutti_asr_lab.simulation.profile import Profile

LIMIT, STREAM_S = 4, 0.5
BUSY = Profile((0.0, 12.0, 12.25, 18.0), (0.14, 0.14, 0.02, 0.02))  # of 100 users
RULE = ScalingRule(fill=0.6, least=1, most=3, sync_s=0.25, period_s=1.0, down_window_s=1.5)


class Replicas:
    """Real servers, of which a call goes to the one with the fewest; the rule drains some."""

    def __init__(self, servers):
        self.servers = servers
        self.draining = set()
        self.calls = self.refused = 0
        self.lengths_s = []
        self._lock = threading.Lock()
        self._open = [0] * len(servers)

    def call(self, seconds):
        """Make a call, which the server may refuse."""
        with self._lock:
            ready = [number for number in range(len(self.servers)) if number not in self.draining]
            number = min(ready, key=lambda each: self._open[each])
            self._open[number] += 1
            self.calls += 1
        began_s = time.monotonic()
        try:
            with self.servers[number].listen():
                time.sleep(seconds)  # its length
            self.lengths_s.append(time.monotonic() - began_s)
        except InvalidStatus as refusal:
            if refusal.response.status_code != 503:
                raise
            self.refused += 1
        finally:
            with self._lock:
                self._open[number] -= 1

    def scale(self, scaler, now):
        """Let the rule decide by the servers' own numbers; it only removes here. Returns the replicas that are left."""
        ready = [server for number, server in enumerate(self.servers) if number not in self.draining]
        load = sum(len(server.replica.sessions) for server in ready) / LIMIT
        wanted = scaler.decide(now, len(ready), load)
        for _ in range(len(ready) - wanted):
            number = max(set(range(len(self.servers))) - self.draining)
            self.draining.add(number)
            self.servers[number].replica.sessions.draining = True
        return len(self.servers) - len(self.draining)


def run_real(servers):
    """Return the replicas after the profile's time, and (seconds, ready) at each decision."""
    replicas, scaler, rng, threads, sizes = Replicas(servers), Autoscaler(RULE), random.Random(1), [], []
    began_s = time.monotonic()
    due_s, decides_s = 0.0, RULE.sync_s
    while (now := time.monotonic() - began_s) < BUSY.seconds:
        if now >= decides_s:
            sizes.append((now, replicas.scale(scaler, now)))
            decides_s += RULE.sync_s
        if now >= due_s:
            thread = threading.Thread(target=replicas.call, args=(rng.expovariate(1 / STREAM_S),))
            thread.start()
            threads.append(thread)
            due_s += rng.expovariate(100 * BUSY.speaking(now) / STREAM_S)
        time.sleep(max(0.0, min(due_s, decides_s) - (time.monotonic() - began_s)))
    for thread in threads:
        thread.join()
    return replicas, sizes


def test_refusals_and_drains_of_three_real_replicas_are_as_simulated(live_server):
    servers = [live_server(max_streams=LIMIT) for _ in range(3)]
    real, sizes = run_real(servers)
    assert {size for at_s, size in sizes if at_s < 10} == {3}
    took_s = sum(real.lengths_s) / len(real.lengths_s)  # with the handshake, and the machine's delays
    settings = FleetSettings(
        users=100, limit=LIMIT, stream_s=took_s, failures_per_day=0.0, metric_age_s=0.0, rule=RULE, tick_s=0.01
    )
    stretched = replace(BUSY, shares=tuple(share * took_s / STREAM_S for share in BUSY.shares))
    days = [Fleet(settings, stretched, seed).run(0.5) for seed in range(5)]
    calls, refused = (
        sum(getattr(each, name) for day in days for each in day) / len(days) for name in ("calls", "refused")
    )
    assert real.calls == pytest.approx(calls, rel=0.15)
    assert real.refused / real.calls == pytest.approx(refused / calls, abs=0.08)
    assert refused / calls > 0.15
    at_end = sorted(day[-1].ready for day in days)
    assert at_end[0] <= sizes[-1][1] <= at_end[-1]
    assert sizes[-1][1] < 3
    left_s = next(at_s for at_s, size in sizes if size < 3)
    simulated = [next(each.at_s for each in day if each.ready < 3) for day in days]
    assert min(simulated) - 1.5 <= left_s <= max(simulated) + 1.5
