import json, numpy as np, pytest
from live_server import LiveServer, transcript
from spelling import spell
from media_files import container, opus_packets
import soxr
AUDIO = spell("hello there")
def up(p, r): return np.clip(np.rint(soxr.resample(p.astype(np.float32), 16000, r)), -32768, 32767).astype(np.int16)[:, None]
@pytest.mark.parametrize("name", ["flac", "wav", "linear32", "flacstereo", "mulawx"])
def test_live(live_server, name):
    s = live_server()
    q = {"flac": {"encoding": "flac", "sample_rate": None}, "wav": {"encoding": None, "sample_rate": None}, "linear32": {"encoding": "linear32"}, "flacstereo": {"encoding": None, "sample_rate": None}, "mulawx": {"encoding": "linear16"}}[name]
    data = {"flac": lambda: container("flac", "flac", AUDIO[:, None], 16000), "wav": lambda: container("wav", "pcm_s24le", AUDIO[:, None], 16000, ), "linear32": lambda: (AUDIO / 32768).astype("<f4").tobytes(), "flacstereo": lambda: container("flac", "flac", np.repeat(AUDIO[:, None], 2, 1), 16000), "mulawx": lambda: AUDIO.tobytes()}[name]()
    with s.listen(**q) as c:
        for i in range(0, len(data), 777): c.send(data[i:i+777])
        frames = c.finish()
        assert transcript(frames) == "hello there"
        assert frames[-1]["duration"] == pytest.approx(len(AUDIO)/16000, abs=1e-3)
    s.wait_idle()
def test_garbage(live_server):
    s = live_server()
    with s.listen(encoding=None, sample_rate=None) as c:
        c.send(b"garbage garbage")
        with pytest.raises(Exception, match="DATA-0000 the audio"):
            while True: print(c.receive() if hasattr(c,'receive') else c.socket.recv(timeout=5))
    s.wait_idle()
def test_finalize(live_server):
    s = live_server()
    data = container("flac", "flac", AUDIO[:, None], 16000)
    with s.listen(encoding="flac", sample_rate=None) as c:
        c.send(data); c.say("Finalize")
        fr = c.until(lambda f: f.get("from_finalize"))
        assert transcript(fr) == "hello there"
        c.finish()
