import pytest
import test_deepgram_node as n
import test_livekit as l
import test_pipecat as p
import test_deepgram_sdk as d
@pytest.mark.parametrize("i", range(40))
def test_many(server, relay, node, spoken, livekit, pipecat, i):
    n.test_a_stream(server, relay, node, spoken)
    l.test_a_stream(server, relay, livekit, spoken)
    p.test_a_stream(server, relay, pipecat, spoken)
    d.test_the_sync_client(server, relay)
    d.test_the_async_client(server, relay)
