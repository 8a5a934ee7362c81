"""Drives pipecat's DeepgramSTTService for test_pipecat.py, and its services on SageMaker for test_sagemaker.py."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from lines import Happened, main, read_audio, tell
from loguru import logger
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams, VADState
from pipecat.frames.frames import (
    EagerTranscriptionFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    MetricsFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import STTUsageMetricsData, TTFBMetricsData
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.deepgram.flux.stt import DeepgramFluxSTTService
from pipecat.services.deepgram.stt import DeepgramSTTService
from pipecat.workers.runner import WorkerRunner

RATE_HZ = 16_000
FRAME_BYTES = 2 * RATE_HZ // 50  # 20 ms, as transports deliver them
NO_WORDS = SimpleNamespace(alternatives=[SimpleNamespace(words=[])])  # of the results of turns
NEVER_S = 600.0  # its time-outs never help: what is seen came from the server


class Sink(FrameProcessor):
    """Reports the frames that arrive at the end of the pipeline."""

    def __init__(self, happened: Happened) -> None:
        super().__init__()
        self._happened = happened

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, InterimTranscriptionFrame):
            self._tell("interim", text=frame.text)
        elif isinstance(frame, EagerTranscriptionFrame):
            self._tell("eager", text=frame.text)
        elif isinstance(frame, TranscriptionFrame):
            speakers = [word.speaker for word in getattr(frame.result, "channel", NO_WORDS).alternatives[0].words]
            self._tell("final", text=frame.text, finalized=frame.finalized, speakers=speakers)
        elif isinstance(frame, MetricsFrame):
            for measured in frame.data:
                if isinstance(measured, TTFBMetricsData):
                    self._tell("measured")
                elif isinstance(measured, STTUsageMetricsData):
                    self._tell("usage", seconds=measured.value.audio_seconds)
        await self.push_frame(frame, direction)

    def _tell(self, event: str, **more: Any) -> None:
        tell(event, **more)
        self._happened.note(event)


async def stream(
    host: str,
    key: str,
    steps: list[list[Any]],
    lines: asyncio.Queue[str],
    options: dict[str, Any] | None = None,
    turns: bool = False,
    trusted: str | None = None,
) -> None:
    """Perform these steps, then send an EndFrame. `turns`: with the client of Deepgram's Flux protocol.

    `trusted` is the certificate of SageMaker at `host`: the services for it are used, without the key. The option
    `settings` has the fields of `DeepgramSTTService.Settings`. Steps:

    ("start",) and ("stop",) of speech as a VAD reports it, ("push", file), ("wait", event, times), ("signal",),
    ("connected",), ("confirmed",).
    """
    happened = Happened()
    options = {"sample_rate": RATE_HZ, **(options or {})}
    if trusted:
        service = on_sagemaker(host, trusted, options, turns=turns)
    else:
        if "settings" in options:
            options["settings"] = DeepgramSTTService.Settings(**options["settings"])
        service = (
            DeepgramFluxSTTService(url=f"ws://{host}/v2/listen", api_key=key, **options)
            if turns
            else DeepgramSTTService(base_url=f"ws://{host}", api_key=key, stt_ttfb_timeout=NEVER_S, **options)
        )
    worker = PipelineWorker(
        Pipeline([service, Sink(happened)]),
        cancel_on_idle_timeout=False,
        enable_rtvi=False,
        params=PipelineParams(enable_metrics=True, enable_usage_metrics=True, send_initial_empty_metrics=False),
    )

    @worker.event_handler("on_pipeline_error")
    async def on_error(_: PipelineWorker, frame: ErrorFrame) -> None:
        tell("error", error=frame.error, usable=frame.processor.is_usable)
        happened.note("error")

    @worker.event_handler("on_pipeline_started")
    async def on_started(_: PipelineWorker, __: Frame) -> None:
        tell("started")
        happened.note("started")

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await asyncio.gather(runner.run(), take_steps(worker, service, steps, happened, lines))


def on_sagemaker(host: str, trusted: str, options: dict[str, Any], *, turns: bool) -> FrameProcessor:
    """The service for SageMaker; its client of Amazon gets another address, and trusts the certificate there.

    A fault of that client is mended: a message after its reader was cancelled is an error, and closing never ends
    (awslabs/aws-crt-python, pull request 700).
    """
    from awscrt import io
    from awscrt.aio import http
    from pipecat.services.aws.sagemaker import bidi_client

    plain, made = io.TlsContextOptions.__init__, bidi_client.SageMakerBidiClient.__init__

    def trusting(tls: Any) -> None:
        plain(tls)
        tls.override_default_trust_store_from_path(None, trusted)

    def elsewhere(client: Any, *arguments: Any, **named: Any) -> None:
        made(client, *arguments, **named)
        client.bidi_endpoint = f"https://{host}"

    class Settable(Future):  # also after its reader was cancelled
        def set_result(self, result: Any) -> None:
            if not self.cancelled():
                super().set_result(result)

    http.Future = Settable
    io.TlsContextOptions.__init__, bidi_client.SageMakerBidiClient.__init__ = trusting, elsewhere
    os.environ |= {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    if turns:
        from pipecat.services.deepgram.flux.sagemaker import stt

        chosen = stt.DeepgramFluxSageMakerSTTService
    else:
        from pipecat.services.deepgram.sagemaker import stt

        chosen = stt.DeepgramSageMakerSTTService
    if "settings" in options:
        options["settings"] = chosen.Settings(**options["settings"])
    return chosen(endpoint_name="tutti", region="us-east-2", **options)


async def take_steps(
    worker: PipelineWorker,
    service: DeepgramSTTService,
    steps: list[list[Any]],
    happened: Happened,
    lines: asyncio.Queue[str],
) -> None:
    await happened.wait("started")
    for name, *arguments in steps:
        if name == "start":
            await worker.queue_frame(VADUserStartedSpeakingFrame(start_secs=0.2))
        elif name == "stop":
            await worker.queue_frame(VADUserStoppedSpeakingFrame(stop_secs=0.2))
        elif name == "push":
            raw = read_audio(*arguments)
            for start in range(0, len(raw), FRAME_BYTES):
                await worker.queue_frame(InputAudioRawFrame(raw[start : start + FRAME_BYTES], RATE_HZ, 1))
        elif name == "wait":
            await happened.wait(*arguments)
        elif name == "signal":
            await lines.get()
        elif name == "connected":  # to be asked when the handshake is done: it drops audio until it has noticed
            while service._connection is None:  # noqa: ASYNC110 - it offers no event
                await asyncio.sleep(0)
        elif name == "confirmed":  # as above, of the client of turns
            await service._connection_established_event.wait()
    await worker.queue_frame(EndFrame())


async def stops(audio: str, lines: asyncio.Queue[str]) -> None:
    """The pieces of 20 ms at whose arrival its detector reports that speech stopped, as in its stt-benchmark."""
    raw, detector = read_audio(audio), SileroVADAnalyzer(params=VADParams(stop_secs=0.2))
    detector.set_sample_rate(RATE_HZ)
    speaking = False
    for piece, start in enumerate(range(0, len(raw), FRAME_BYTES)):
        state = await detector.analyze_audio(raw[start : start + FRAME_BYTES])
        if speaking and state is VADState.QUIET:
            tell("stop", piece=piece)
        speaking = state is VADState.SPEAKING or (speaking and state is VADState.STOPPING)
    await detector.cleanup()


if __name__ == "__main__":
    logger.remove()  # it would fill the pipe, which is not read
    main(stream=stream, stops=stops)
