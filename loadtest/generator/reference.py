"""What each recording gives when it is the only stream: the text that load must not change.

Owns the reference pass. It goes through the same server, as fast as the server answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.errors import NoReference
from loadtest.generator.recordings import Recording
from tutti_asr_client.errors import Refused, Unreachable
from tutti_asr_client.files.display import SilentDisplay
from tutti_asr_client.files.file_result import Failed
from tutti_asr_client.files.transcribe import transcribe_file
from tutti_asr_client.files.transcriber import Transcriber


async def transcripts(recordings: Sequence[Recording], transcriber: Transcriber) -> dict[str, str]:
    """The text of each recording by its path, one stream at a time.

    Raises:
        Unreachable, Refused: the server does not let us in.
        NoReference: a recording fails although it is alone.
    """
    texts: dict[str, str] = {}
    for recording in recordings:
        outcome = await transcribe_file(recording.path, transcriber, SilentDisplay(), realtime=False)
        if isinstance(outcome, Failed):
            if isinstance(outcome.error, Unreachable | Refused):
                raise outcome.error
            raise NoReference(f"{outcome.path}: {outcome.problem} (alone, before any load)") from outcome.error
        texts[str(outcome.path)] = outcome.text
    return texts
