"""Audio of an input device of this machine, through PortAudio (the package sounddevice), in real time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

from tutti_asr_client.errors import ClientError
from tutti_asr_client.files.pacing import MESSAGE_S

Device = int | str | None
"""Number of an input device, a part of its name, or None: the default one."""

SAMPLE_BYTES = 2
WAITING_S = 60.0
"""Audio that waits for a slow server; then PortAudio's own buffer fills, and what it drops counts as lost."""


class MicrophoneError(ClientError):
    """An input device cannot be used."""


def input_devices() -> str:
    """Return the input devices, one a line: number, name, channels. Raises: MicrophoneError."""
    sounds = _portaudio()
    default = sounds.default.device[0]
    inputs = [(number, one) for number, one in enumerate(sounds.query_devices()) if one["max_input_channels"]]
    if not inputs:
        raise MicrophoneError("this machine has no audio input; transcribe a file instead, or connect a microphone")
    return "\n".join(
        f"{'*' if number == default else ' '} {number:2} {one['name']} ({one['max_input_channels']} channels)"
        for number, one in inputs
    )


def input_rate(device: Device, preferred: int) -> int:
    """Return the preferred rate in Hz if the device records at it, else the device's own. Raises: MicrophoneError."""
    sounds = _portaudio()
    try:
        device_info = sounds.query_devices(device, "input")
    except (ValueError, sounds.PortAudioError) as error:
        raise _absent(device, error) from error
    try:
        sounds.check_input_settings(device=device, channels=1, dtype="int16", samplerate=preferred)
    except sounds.PortAudioError:
        return int(device_info["default_samplerate"])
    return preferred


class Microphone:
    """Iterator over a device's audio, as messages of int16 mono PCM; it ends with `stopping` or after `limit_s`.

    Iterate once. `lost` counts the messages before which PortAudio dropped audio, because this process was too slow.
    """

    def __init__(
        self, sample_rate: int, stopping: asyncio.Event, *, device: Device = None, limit_s: float | None = None
    ) -> None:
        self._rate, self._device, self._stopping = sample_rate, device, stopping
        self._left = math.inf if limit_s is None else round(limit_s * sample_rate)  # samples to record
        self._taken = 0
        self.lost = 0
        self.ended_s: float | None = None  # time of the event loop

    @property
    def duration_s(self) -> float:
        """Seconds of audio that were read."""
        return self._taken / self._rate

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield each message when it was recorded. Raises: MicrophoneError if the device cannot be opened or read."""
        recorded: asyncio.Queue[bytes | None] = asyncio.Queue(round(WAITING_S / MESSAGE_S))  # None marks the end
        with self._open() as stream:
            recorder = asyncio.create_task(self._record(stream, recorded))
            try:
                while (message := await recorded.get()) is not None:
                    self._taken += len(message) // SAMPLE_BYTES
                    yield message
                await recorder
            finally:
                recorder.cancel()
                await asyncio.wait({recorder})

    async def _record(self, stream: Any, recorded: asyncio.Queue[bytes | None]) -> None:
        try:
            while self._left and not self._stopping.is_set():
                samples = int(min(self._left, round(MESSAGE_S * self._rate)))
                message, overflowed = await asyncio.to_thread(stream.read, samples)
                self._left -= samples
                self.lost += bool(overflowed)
                await recorded.put(bytes(message))
        except _portaudio().PortAudioError as error:
            raise MicrophoneError(f"{_name(self._device)}: stopped recording ({error})") from error
        finally:
            self.ended_s = asyncio.get_running_loop().time()
            await recorded.put(None)

    def _open(self) -> Any:
        sounds = _portaudio()
        try:
            return sounds.RawInputStream(samplerate=self._rate, device=self._device, channels=1, dtype="int16")
        except (ValueError, sounds.PortAudioError) as error:
            raise _absent(self._device, error) from error


def _absent(device: Device, error: Exception) -> MicrophoneError:
    return MicrophoneError(
        f"{_name(device)}: cannot be opened ({error}); --list-inputs shows the inputs of this machine"
    )


def _name(device: Device) -> str:
    return "default input" if device is None else f"input {device}"


def _portaudio() -> Any:
    """Return the package sounddevice. Raises: MicrophoneError, whose text says what to install."""
    try:
        import sounddevice
    except ImportError as error:
        raise MicrophoneError(
            "a microphone needs the package sounddevice: pip install 'tutti-asr[microphone]'"
        ) from error
    except OSError as error:  # the library itself; wheels of macOS and Windows contain it
        raise MicrophoneError(
            "a microphone needs PortAudio: on Debian and Ubuntu, apt install libportaudio2"
        ) from error
    return sounddevice
