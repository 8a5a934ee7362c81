"""Rolling upgrade under load between two versions through HAProxy: nothing is lost, tickets move or are refused."""

from __future__ import annotations

import asyncio
import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from loadtest.reports.criteria import unmet
from server.errors import TicketCode
from tests.support.audio.speech import ROOT
from tests.support.deployment.edge import need
from tests.support.needs import missing
from tutti_asr_lab.trials.scenarios.failover import Fault, Plan, failover
from tutti_asr_lab.trials.trial import TrialReport

TICKETS_OF_VERSION_2 = "7181058327f85e4a0071f2e71bddd3078f1172e0"  # the newest commit with them
pytestmark = pytest.mark.timeout(400)


def tree_of(commit: str, folder: Path) -> Path:
    """Write the files of a commit to a folder; skip the test, or fail in CI, if this clone does not have it."""
    done = subprocess.run(["git", "-C", ROOT, "archive", commit], capture_output=True, check=False)
    if done.returncode:
        missing(f"the commit {commit[:12]} is not in this clone: git fetch --unshallow")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def upgraded_from(tree: Path) -> TrialReport:
    """Replace two replicas of an earlier version by this one, while resumable, short and long plain streams run."""
    plan = Plan(
        fault=Fault.ROLLING,
        replicas=2,
        streams=4,
        stream_s=8.0,
        fault_after_s=3.0,
        plain=2,
        drain_timeout_s=3.0,
        previous=tree,
    )
    return asyncio.run(failover(plan))


def test_tickets_of_another_version_are_refused_by_name_and_no_audio_is_lost(tmp_path: Path) -> None:
    need("haproxy")
    run = upgraded_from(tree_of(TICKETS_OF_VERSION_2, tmp_path))
    assert not unmet(run.bars), run
    assert run.figures["Short"].streams > 10
    found = run.figures["Resumable"]
    assert set(found.refused_tickets) == {TicketCode.VERSION}
    refused = found.refused_tickets[TicketCode.VERSION]
    assert refused <= found.by_replay <= refused + found.before_ticket
    by_ticket = found.reconnections - refused - found.before_ticket
    assert found.by_ticket == by_ticket, "the others move among replicas of one version"
