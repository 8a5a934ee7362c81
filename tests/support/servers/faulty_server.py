"""A server whose model can fail, hang or end its thread: `python faulty_server.py SETTINGS` (JSON)."""

import json
import sys
import time

import numpy as np

from server import serve
from server.models.loading import LoadedModel
from server.settings import Settings
from tests.support.servers.spelling import CONFIG, SpellingModel, spelling_decoder

FATAL, HANGING = -1, -2  # samples of audio that no other test uses


class Lost(BaseException):
    """Ends the model thread; an `Exception` would fail one batch only."""


class FaultyModel(SpellingModel):
    """Raises `Lost` on a sample `FATAL`, and hangs on a sample `HANGING`."""

    def step(self, inputs, state):
        if (inputs == FATAL).any():
            raise Lost("the device is gone")
        while (inputs == HANGING).any():
            time.sleep(1_000)
        return super().step(inputs, state)


def audio(sample):
    """One step of audio of one value."""
    return np.full(CONFIG.step_samples, sample, np.int16)


if __name__ == "__main__":
    serve.load_served = lambda _: ([LoadedModel.of(FaultyModel(), spelling_decoder())], None)
    sys.exit(serve.run(Settings(**json.loads(sys.argv[1]))))
