"""Models without weights: their decoders in another process, and engines that come from somewhere else."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from structlog.testing import capture_logs

from batching.thread.step_token import StepToken
from model import checkpoint
from model.acoustic import log_probs_of
from model.ctc.interface import Decoder, LogProbs
from model.ctc.words import Word
from model.facts import ModelFacts
from model.recordings import read_pcm
from model.speakers.slot_model import SpeakerWeights
from model.vad.silero import SileroVad
from server.configuration.models_file import ModelEntry
from server.coordination.local import LocalCoordinator
from server.errors import SettingsError
from server.models.engine_source import EnginePlan, LocalEngines
from server.models.loading import (
    WINDOWS,
    LoadedModel,
    ModelCard,
    load_acoustic,
    load_auxiliary,
    load_decoders,
    load_local,
    load_models,
)
from server.models.registry import outlines_of
from server.processes.engine_host import EngineHost
from server.recognition.engines import MakeEngine
from server.recognition.steps import TOGETHER, Auxiliary
from server.replica import build_replica
from server.settings import Settings
from tests.support.networks.published import probe_of
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import SpellingModel, spell, spelling_decoder


class NoEngines:
    """The engines of a model whose steps are not computed here."""

    gpu = None

    def maker(self, plan: EnginePlan, step_token: StepToken | None, clock: Callable[[], float]) -> NoReturn:
        raise AssertionError(f"no engine is made here: {plan.name}")

    def warn_of_dependent_rows(self, reproducible: bool) -> None:
        """Do nothing: the process with the weights checks them."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a model with its decoders shows, and the words of one stream."""

    name: str
    languages: tuple[str, ...]
    card: ModelCard
    digests: dict[str, str]  # of its decoders
    words: tuple[Word, ...]


def decoded(model: LoadedModel, outputs: LogProbs) -> Decoded:
    """Decode the outputs (T, …) of one stream."""
    decoders: dict[str, Decoder] = {"": model.decoder, **model.grammars}
    decoders |= {f"{finals} {name}".rstrip(): decoder for (finals, name), decoder in model.passes.items()}
    state: Any = model.decoder.start(model.facts.config.delay_frames)
    model.decoder.advance([state], outputs[None])
    digests = {name: decoder.digest for name, decoder in decoders.items()}
    return Decoded(model.name, model.languages, model.card, digests, model.decoder.take(state))


def decoded_without(
    weights: Iterable[Path],
    facts: ModelFacts,
    outputs: LogProbs,
    pool: ProcessPoolExecutor,
    *,
    entry: ModelEntry | None,
    settings: Settings,
) -> Decoded:
    """Decode in a pool's process, which fails if it opens one of the files `weights`, or loads torch.

    Only for a transducer it may load graphs: its prediction network and its joiner.
    """
    return pool.submit(_decoded, facts, entry, settings, outputs, {f"{path}" for path in weights}).result()


def _decoded(
    facts: ModelFacts, entry: ModelEntry | None, settings: Settings, outputs: LogProbs, weights: set[str]
) -> Decoded:
    sys.addaudithook(_refusing(weights))
    modules: dict[str, Any] = sys.modules
    if facts.transducer is None:
        modules["onnxruntime"] = None  # an import fails
    elif modules.get("onnxruntime", ...) is None:
        del modules["onnxruntime"]
    found = decoded(load_decoders(facts, entry, settings, NoEngines()), outputs)
    assert "torch" not in sys.modules
    return found


def _refusing(weights: set[str]) -> Callable[[str, tuple[Any, ...]], None]:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and f"{arguments[0]}" in weights:
            raise AssertionError(f"{arguments[0]} is opened")

    return hook


SAMPLE = Path(__file__).parents[3] / "model" / "samples" / "demo.flac"
OWN: dict[str, Any] = {"greedy": {"decoder": "greedy"}, "beam search": {"decoder": "beam"}}
PUBLISHED = ["zipformer2-ctc", "t-one-ctc", "zipformer2-transducer", "nemo-transducer"]


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def check_equal_elsewhere(
    weights: list[Path], entry: ModelEntry | None, settings: Settings, pool: ProcessPoolExecutor
) -> list[str]:
    """Decode one recording here and in a process without the weights; return the names of the decoders."""
    acoustic = load_acoustic(settings)
    facts = acoustic.facts
    (outputs,) = log_probs_of(acoustic, [read_pcm(SAMPLE, facts.config.sample_rate)])
    here = decoded(load_decoders(facts, entry, settings, LocalEngines.of(acoustic)), outputs)
    assert here.words
    assert decoded_without(weights, facts, outputs, pool, entry=entry, settings=settings) == here
    return sorted(here.digests)


@pytest.mark.parametrize("name", OWN)
def test_decoders_of_an_own_model_are_equal_in_a_process_without_its_weights(
    name: str, pool: ProcessPoolExecutor
) -> None:
    settings = Settings(model=checkpoint.GRU, device="cpu", **OWN[name])
    found = check_equal_elsewhere([checkpoint.GRU], None, settings, pool)
    grammars = ["", "accurate", "accurate alphanumeric", "accurate digits", "alphanumeric", "digits"]
    assert found == (grammars if name == "beam search" else [""])


@pytest.mark.parametrize("variant", PUBLISHED)
def test_decoders_of_a_published_model_are_equal_in_a_process_without_its_graphs(
    variant: str, pool: ProcessPoolExecutor
) -> None:
    folder = Path(probe_of(variant).folder)
    entry = ModelEntry(name="probe", path=folder, languages=("en",))
    settings = Settings(device="cpu").of_model(entry)
    weights = [path for path in folder.glob("*.onnx") if path.stem not in {"decoder", "joiner"}]
    assert len(weights) == 1
    assert check_equal_elsewhere(weights, entry, settings, pool) == [""]


@pytest.mark.parametrize("variant", ["zipformer2-ctc", "zipformer2-transducer"])
def test_a_description_can_be_pickled_and_has_what_a_server_shows(variant: str) -> None:
    for path in (Path(probe_of(variant).folder), checkpoint.GRU):
        model = load_acoustic(Settings(model=path, device="cpu"))
        facts = pickle.loads(pickle.dumps(model.facts))
        assert facts == model.facts
        assert (facts.digest, facts.precision) == (model.digest, model.precision)
        assert (facts.config, f"{facts.device}") == (model.config, "cpu")
    facts = load_acoustic(Settings(model=Path(probe_of(variant).folder), device="cpu")).facts
    assert facts.published
    assert (facts.transducer is not None) == variant.endswith("transducer")


class Recorded:
    """A source of engines that keeps the plans it is asked for."""

    gpu = None

    def __init__(self, model: SpellingModel) -> None:
        self.plans: list[EnginePlan] = []
        self._engines = LocalEngines(model)

    def maker(self, plan: EnginePlan, step_token: StepToken | None, clock: Callable[[], float]) -> MakeEngine:
        self.plans.append(plan)
        return self._engines.maker(plan, step_token, clock)

    def warn_of_dependent_rows(self, reproducible: bool) -> None:
        """Do nothing."""


def test_a_server_makes_the_engine_of_a_model_by_its_source(live_server: Callable[..., LiveServer]) -> None:
    acoustic = SpellingModel()
    source = Recorded(acoustic)
    model = LoadedModel.of(acoustic.facts, spelling_decoder(), engines=source)
    server = live_server(model=[model], reproducible=True, max_streams=5)
    with server.listen() as client:
        client.send(spell("no one "))
        finals = [frame for frame in client.finish() if frame["type"] == "Results" and frame["is_final"]]
    assert transcript(finals) == "no one"
    assert source.plans == [EnginePlan.of(server.settings, acoustic.config, "model spelling")]
    assert (source.plans[0].capacity, source.plans[0].step_s) == (5 + server.settings.upload_slots + 16, 0.08)


def test_a_stream_with_a_second_pass_by_default_counts_as_several(monkeypatch: pytest.MonkeyPatch) -> None:
    step_s, open_slots = list[float](), LocalCoordinator.open_slots
    monkeypatch.setattr(
        LocalCoordinator, "open_slots", lambda one, *rest: (step_s.append(rest[1]), open_slots(one, *rest))[1]
    )
    model = load_local(None, Settings(device="cpu"))
    for finals in ("auto", "fast", "context", "accurate"):
        build_replica(Settings(finals=finals, device="cpu"), (model,), {}, time.perf_counter)
    assert step_s == pytest.approx([0.16, 0.24, 0.16, 0.24 / 7])


def test_the_plan_of_a_voice_activity_engine_has_rows_of_one_step_or_of_equal_parts() -> None:
    config, settings = SpellingModel().config, Settings()
    speech, vad = EnginePlan.of(settings, config, "a"), EnginePlan.of(settings, config, "a", 640)
    assert (speech.step_s, vad.step_s) == (0.08, 0.04)
    assert EnginePlan.of(settings, config, "a", 4_096).step_s == 0.08
    assert vad.max_queued > speech.max_queued
    assert speech.capacity == vad.capacity + settings.fork_slots
    assert replace(vad, step_s=speech.step_s, max_queued=speech.max_queued, capacity=speech.capacity) == speech


MIB = 2**20


def test_states_that_do_not_fit_into_memory_are_refused_if_the_number_of_streams_is_a_setting() -> None:
    plan = EnginePlan.of(Settings(max_streams=100, max_uploads=2), SpellingModel().config, "model large")
    plan.check_memory(9 * MIB, plan.capacity * 9 * MIB)
    with pytest.raises(SettingsError) as error:
        plan.check_memory(9 * MIB, plan.capacity * 9 * MIB - 1)
    needed = f"{plan.capacity * 9 / 1024:.1f} GiB"
    assert str(error.value) == (
        f"max_streams: model large: {plan.capacity} states of 9.0 MiB, for live streams, uploads and forks, need "
        f"{needed}, but {needed} of memory are free; set a lower number, or add memory"
    )


def test_with_an_automatic_number_of_streams_a_warning_says_how_many_fit() -> None:
    plan = EnginePlan.of(Settings(), SpellingModel().config, "model large")
    with capture_logs() as logs:
        plan.check_memory(MIB, plan.capacity * MIB)
        plan.check_memory(MIB, 50 * MIB)
    (line,) = logs
    assert (line["event"], line["streams"]) == ("memory is enough for fewer streams than slots", 50)


def test_the_memory_of_the_machine_is_checked_for_models_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.models.engine_source.free_memory", lambda: 100)
    plan = EnginePlan.of(Settings(max_streams=100), SpellingModel().config, "model spelling")
    with pytest.raises(SettingsError, match=r"max_streams: .* set a lower number"):
        plan.slots_of(SpellingModel())


@pytest.mark.parametrize(("streams", "share"), [("auto", 0), (100, 1)])
def test_a_set_number_of_streams_takes_the_memory_of_its_states_at_the_start(streams: Any, share: int) -> None:
    model, taken = SpellingModel(), []
    slots = SimpleNamespace(state_bytes=1, reset=taken.append)
    plan = EnginePlan.of(Settings(max_streams=streams), model.config, "model spelling")
    plan.slots_of(SimpleNamespace(slots=lambda **_: slots))  # type: ignore[arg-type]
    assert taken == list(range(share * plan.capacity))


def test_states_that_cannot_be_allocated_are_refused_with_advice() -> None:
    def too_large(**_: Any) -> NoReturn:
        raise MemoryError("Unable to allocate 40.9 GiB")

    plan = EnginePlan.of(Settings(max_streams=100), SpellingModel().config, "model spelling")
    with pytest.raises(SettingsError, match=r"Unable to allocate 40\.9 GiB\); set a lower number"):
        plan.slots_of(SimpleNamespace(slots=too_large))  # type: ignore[arg-type]


class SlotsAsked(Exception):
    """Carries the capacity for which a model was asked for slots."""


class Asking(SpellingModel):
    """A model that only says how many slots it was asked for."""

    def slots(self, *, capacity: int, **_: Any) -> Any:
        raise SlotsAsked(capacity)


def test_an_engine_host_has_slots_for_forks_as_a_server_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    host, model = object.__new__(EngineHost), Asking()

    async def loaded(*_: Any) -> Asking:
        return model

    monkeypatch.setattr(EngineHost, "_model", loaded)
    host._settings, host._vad = Settings(max_streams=5), None
    with pytest.raises(SlotsAsked) as error:
        asyncio.run(host._start("model spelling"))
    assert error.value.args == (EnginePlan.of(host._settings, model.config, "model spelling").capacity,)


def test_models_are_loaded_by_the_function_that_is_given() -> None:
    calls: list[Any] = []

    def load(entry: ModelEntry | None, settings: Settings) -> LoadedModel:
        calls.append((entry and entry.name, settings.model))
        return LoadedModel.of(SpellingModel().facts, spelling_decoder(), engines=NoEngines())

    (model,) = load_models(Settings(), load)
    *_, mandarin = outlines_of(Settings(), load)
    assert model.name == mandarin.load().name == "spelling"
    assert calls == [(None, None), ("tutti-mandarin", Path("tutti-mandarin"))]


def test_the_windows_of_auxiliary_models_are_known_without_them() -> None:
    assert WINDOWS[Auxiliary.VAD] * TOGETHER[Auxiliary.VAD] == SileroVad.step_samples
    assert WINDOWS[Auxiliary.SPEAKERS] * TOGETHER[Auxiliary.SPEAKERS] == SpeakerWeights.step_samples
    assert load_auxiliary(Settings(vad="off")) == {}


def test_an_engine_that_is_loaded_here_has_no_gpu_on_a_cpu() -> None:
    entry = ModelEntry(name="en", path=checkpoint.GRU, languages=("en",), decoder="greedy", device="cpu")
    assert load_local(entry, Settings().of_model(entry)).engines.gpu is None
