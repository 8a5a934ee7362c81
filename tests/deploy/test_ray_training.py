"""Training on a Ray cluster that loses a node gives the same weights as an uninterrupted run in one process."""

import importlib
import importlib.util
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.needs import missing, need_programs
from tests.support.training import tones
from tutti_asr_lab.training.acoustic.run import Every
from tutti_asr_lab.training.acoustic.snapshots import Snapshots

WITHIN_S = 120.0


@pytest.mark.timeout(240)
def test_a_lost_node_does_not_change_the_weights(tmp_path):
    need_programs("espeak-ng")
    if importlib.util.find_spec("ray") is None or importlib.util.find_spec("pyarrow") is None:
        missing("ray[train] not installed")
    training = importlib.import_module("tutti_asr_lab.training.on_ray")
    fleet = importlib.import_module("tests.support.deployment.ray_fleet")
    folder, out = tones.write_tones(tmp_path), tmp_path / "ray.safetensors"
    chosen, every = tones.everything(), Every(snapshot=3)
    alone = tones.places(folder, tmp_path / "alone.safetensors")
    tones.train(tones.TINY, chosen, alone, processes=1, device="cpu", announce=lambda _: None)
    plan = training.Plan(tones.TINY, chosen, tones.places(folder, out), every, workers=2)
    snapshots = Snapshots(tmp_path / "ray.run")
    with fleet.two_nodes() as (cluster, node), ThreadPoolExecutor(1) as pool:
        run = pool.submit(training.run, plan)
        begun = threading.Event()
        for _ in range(int(WITHIN_S / 0.1)):
            if snapshots.newest(pytest.fail) is not None or run.done():
                begun.set()
                break
            begun.wait(0.1)
        assert begun.is_set()
        cluster.remove_node(node, allow_graceful=False)
        cluster.add_node(num_cpus=1, object_store_memory=fleet.STORE_BYTES)
        run.result(WITHIN_S)
    assert out.read_bytes() == alone.out.read_bytes()
