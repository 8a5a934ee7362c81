// tutti.js with a fake socket and clock. Run by `node --test`; pytest does so in test_web_client.py.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Gatherer, level, toInt16 } from "../../server/web/pcm.js";
import { TuttiStream } from "../../server/web/tutti.js";
import { Unacknowledged } from "../../server/web/unacknowledged.js";

const RATE = 100; // samples a second, so that a final at 1.5 s acknowledges 150

class FakeClock {
  time = 8675309.25;
  #due = [];
  now = () => this.time;
  later = (call, seconds) => {
    const timer = { call, at: this.time + seconds };
    this.#due.push(timer);
    return timer;
  };
  cancel = (timer) => (this.#due = this.#due.filter((other) => other !== timer));

  get pending() {
    return this.#due.length;
  }

  /** Advance the time, and run the due callbacks in order. */
  advance(seconds) {
    const until = this.time + seconds;
    for (;;) {
      const next = this.#due.filter((timer) => timer.at <= until).sort((a, b) => a.at - b.at)[0];
      if (!next) break;
      this.time = Math.max(this.time, next.at);
      this.cancel(next);
      next.call();
    }
    this.time = until;
  }
}

class FakeSocket {
  static all = [];
  readyState = 0;
  bufferedAmount = 0;
  sent = [];

  constructor(url, protocols) {
    Object.assign(this, { url: new URL(url), protocols });
    FakeSocket.all.push(this);
  }
  send = (frame) => this.sent.push(frame);
  close = () => (this.readyState = 3);

  // Actions of the server
  accept() {
    this.readyState = 1;
    this.onopen?.();
  }
  say = (message) => this.onmessage?.({ data: JSON.stringify(message) });
  end(code, reason = "") {
    this.readyState = 3;
    this.onclose?.({ code, reason });
  }

  get audio() {
    return this.sent.filter((frame) => typeof frame !== "string").flatMap((pcm) => [...pcm]);
  }
  get texts() {
    return this.sent.filter((frame) => typeof frame === "string").map((text) => JSON.parse(text).type);
  }
}

const turn = () => new Promise(setImmediate); // lets pending promises settle

function results(start, duration, { final = false, fromFinalize = false, text = "yes" } = {}) {
  const words = text.split(" ").map((word) => ({ word, start, end: start + duration, confidence: 0.5 }));
  return {
    type: "Results",
    start,
    duration,
    is_final: final,
    speech_final: final,
    from_finalize: fromFinalize,
    channel: { alternatives: [{ transcript: text, confidence: 0.5, words }] },
    tutti: { stable_words: 1 },
  };
}

async function opened(options = {}) {
  FakeSocket.all = [];
  const clock = new FakeClock();
  const stream = new TuttiStream("ws://host/v1/listen", { sampleRate: RATE, WebSocket: FakeSocket, clock, ...options });
  const events = [];
  for (const type of ["open", "waiting", "refused", "lost", "ended", "failed", "Results", "UtteranceEnd"])
    stream.on(type, (detail) => events.push([type, detail]));
  stream.open();
  await turn();
  return { stream, clock, events, socket: FakeSocket.all[0], of: (type) => events.filter(([t]) => t === type).map(([, d]) => d) };
}

const ramp = (from, to) => Int16Array.from({ length: to - from }, (_, i) => from + i);
const range = (from, to) => [...ramp(from, to)];

test("the key is sent only in the subprotocol, arrays are repeated", async () => {
  const { socket } = await opened({ key: "s3cret", query: { keyterm: ["a b", "c"], model: undefined } });
  assert.deepEqual(socket.protocols, ["token", "s3cret"]);
  assert.ok(!socket.url.href.includes("s3cret"));
  assert.deepEqual(socket.url.searchParams.getAll("keyterm"), ["a b", "c"]);
  assert.equal(socket.url.searchParams.get("sample_rate"), String(RATE));
  assert.equal(socket.url.searchParams.get("interim_results"), "true");
  assert.ok(!socket.url.searchParams.has("model"));
});

test("without a key no subprotocol is offered; a key may be fetched for each connection", async () => {
  assert.deepEqual((await opened()).socket.protocols, []);
  const { socket } = await opened({ key: async () => "short", scheme: "bearer" });
  assert.deepEqual(socket.protocols, ["bearer", "short"]);
});

test("audio from before the connection is not lost, and an early close is sent in order", async () => {
  const { stream, socket, of } = await opened();
  stream.send(ramp(0, 30));
  const done = stream.close();
  assert.deepEqual(socket.sent, []);
  socket.accept();
  assert.deepEqual(socket.audio, range(0, 30));
  assert.deepEqual(socket.texts, ["CloseStream"]);
  socket.say(results(0, 0.3, { final: true }));
  socket.say({ type: "Metadata", duration: 0.3 });
  socket.end(1000);
  assert.equal((await done).metadata.duration, 0.3);
  assert.equal(of("Results")[0].transcript, "yes");
  assert.throws(() => stream.send(ramp(0, 1)), /closed/);
});

for (const code of [1006, 1011, 1012, 1013])
  test(`after ${code} audio without a final is sent again, and times continue`, async () => {
    const { stream, clock, socket, of } = await opened();
    socket.accept();
    for (let at = 0; at < 200; at += 8) stream.send(ramp(at, at + 8));
    socket.say(results(0, 1.5, { final: true }));
    socket.say(results(1.5, 0.3));
    socket.end(code, "restart");
    stream.send(ramp(200, 240));
    assert.equal(of("waiting")[0].error.code, code);
    assert.equal(FakeSocket.all.length, 1);
    clock.advance(0.25);
    await turn();
    const second = FakeSocket.all[1];
    second.accept();
    assert.deepEqual(second.audio, range(150, 240), "from the final's last sample, in the middle of a message");
    assert.ok(Math.abs(of("open")[1].replayedSeconds - 0.9) < 1e-9);
    second.say(results(0, 0.9, { final: true }));
    assert.equal(of("Results").at(-1).start, 1.5);
    assert.equal(of("Results").at(-1).words[0].end, 2.4);
    second.say({ type: "UtteranceEnd", last_word_end: 0.5 });
    assert.equal(of("UtteranceEnd")[0].last_word_end, 2);
    second.end(1012);
    clock.advance(0.25);
    await turn();
    FakeSocket.all[2].accept();
    assert.deepEqual(FakeSocket.all[2].audio, [], "everything was acknowledged");
  });

test("an unanswered Finalize or CloseStream is sent again", async () => {
  const { stream, clock, socket } = await opened();
  socket.accept();
  stream.send(ramp(0, 100));
  stream.finalize();
  const done = stream.close();
  socket.end(1012);
  clock.advance(0.25);
  await turn();
  const second = FakeSocket.all[1];
  second.accept();
  assert.deepEqual(second.audio, range(0, 100));
  assert.deepEqual(second.texts, ["Finalize", "CloseStream"]);
  second.say(results(0, 1, { final: true, fromFinalize: true }));
  second.say({ type: "Metadata" });
  second.end(1000);
  assert.equal((await done).code, 1000);
});

test("connections without progress are given up after growing waits; a final resets the count", async () => {
  const { stream, clock, socket, of } = await opened({ maxTries: 4 });
  socket.accept();
  stream.send(ramp(0, 500));
  socket.say(results(0, 1, { final: true }));
  socket.end(1011);
  for (let i = 1; i < 4; i++) {
    clock.advance(10);
    await turn();
    FakeSocket.all.at(-1).accept();
    FakeSocket.all.at(-1).say(results(0, 0.5));
    FakeSocket.all.at(-1).end(1011, "NET-0000 recognition failed");
  }
  const waits = of("waiting").map(({ seconds }) => seconds);
  assert.equal(waits.length, 3);
  waits.forEach((wait, i) => assert.ok(wait >= 0.125 * 2 ** i && wait <= 0.25 * 2 ** i, `${waits}`));
  await assert.rejects(stream.done, /recognition failed/);
  assert.equal(of("failed").length, 1);
  const again = await opened({ maxTries: 2 });
  for (let i = 0; i < 5; i++) {
    const last = FakeSocket.all.at(-1);
    last.accept();
    again.stream.send(ramp(0, 100));
    last.say(results(0, 1, { final: true }));
    last.end(1012);
    again.clock.advance(10);
    await turn();
  }
  assert.equal(again.of("failed").length, 0);
});

for (const code of [1008, 1009])
  test(`${code} is for good: the same audio would meet it again`, async () => {
    const { stream, socket, of } = await opened();
    socket.accept();
    socket.end(code, "DATA-0000");
    await assert.rejects(stream.done, { code });
    assert.equal(of("waiting").length, 0);
  });

function answer(status, message, retryAfter) {
  const asked = [];
  const fetch = async (url, init) => {
    asked.push({ url: new URL(url), ...init });
    return {
      status,
      ok: status === 200,
      json: async () => ({ err_msg: message }),
      headers: new Map(retryAfter ? [["Retry-After", retryAfter]] : []),
    };
  };
  return { fetch, asked };
}

test("the reason of a refused handshake is requested, and a wrong key is permanent", async () => {
  const { fetch, asked } = answer(401, "Invalid credentials.");
  const { stream, socket } = await opened({ fetch, key: "wrong" });
  socket.end(1006);
  await assert.rejects(stream.done, { status: 401, message: "Invalid credentials." });
  assert.equal(asked[0].url.protocol, "http:");
  assert.equal(asked[0].headers.Authorization, "token wrong");
  assert.ok(asked[0].body.byteLength > 0);
});

for (const status of [429, 503])
  test(`${status} is waited for as long as the server says`, async () => {
    const { fetch } = answer(status, "full", "7");
    const { stream, clock, socket, of } = await opened({ fetch });
    stream.send(ramp(0, 10));
    socket.end(1006);
    await turn();
    assert.deepEqual([of("waiting")[0].error.status, of("waiting")[0].seconds], [status, 7]);
    clock.advance(6.9);
    await turn();
    assert.equal(FakeSocket.all.length, 1);
    clock.advance(0.2);
    await turn();
    FakeSocket.all[1].accept();
    assert.deepEqual(FakeSocket.all[1].audio, range(0, 10));
  });

test("a server that does not answer is abandoned, at the handshake and at the end", async () => {
  const { stream, clock, socket, of } = await opened();
  clock.advance(10);
  assert.equal(socket.readyState, 3);
  clock.advance(1);
  await turn();
  FakeSocket.all[1].accept();
  stream.close();
  clock.advance(19.9);
  assert.equal(of("waiting").length, 1);
  clock.advance(0.2);
  assert.equal(of("waiting").length, 2);
});

test("latency starts at the message with the last sample of a result", async () => {
  const { stream, clock, socket, of } = await opened();
  socket.accept();
  stream.send(ramp(0, 10));
  clock.advance(0.1);
  stream.send(ramp(10, 20));
  clock.advance(0.03);
  socket.say(results(0, 0.1));
  socket.say(results(0, 0.11));
  stream.finalize();
  clock.advance(0.02);
  socket.say(results(0, 0.2, { final: true, fromFinalize: true }));
  const [first, second, final] = of("Results");
  assert.ok(Math.abs(first.latency - 0.13) < 1e-6);
  assert.ok(Math.abs(second.latency - 0.03) < 1e-6);
  assert.ok(Math.abs(final.finalLatency - 0.02) < 1e-6, "from the Finalize");
  assert.deepEqual([first.stableWords, final.stableWords, first.finalLatency], [1, 1, undefined]);
});

test("KeepAlive is sent only without audio", async () => {
  const { stream, clock, socket } = await opened();
  socket.accept();
  for (let i = 0; i < 20; i++) {
    stream.send(ramp(0, 5));
    clock.advance(0.5);
  }
  assert.deepEqual(socket.texts, []);
  clock.advance(9);
  assert.equal(socket.texts.length, 2);
  assert.ok(socket.texts.every((type) => type === "KeepAlive"));
});

test("no empty message is sent, which would end the stream", async () => {
  const { stream, socket } = await opened();
  socket.accept();
  stream.send(new Int16Array(0));
  assert.deepEqual(socket.sent, []);
});

test("a writer waits for room", async () => {
  const { stream, clock, socket } = await opened();
  let written = 0;
  const writing = (async () => {
    for (const from of [0, 10]) {
      await stream.write(ramp(from, from + 10));
      written += 1;
    }
  })();
  await turn();
  assert.equal(written, 0, "not connected");
  socket.accept();
  socket.bufferedAmount = 2 ** 20;
  clock.advance(1);
  await turn();
  assert.equal(written, 0, "full");
  socket.bufferedAmount = 0;
  clock.advance(1);
  await writing;
  assert.deepEqual(socket.audio, range(0, 20));
});

test("new key terms are sent at once, and again on the next connection", async () => {
  const { stream, clock, socket } = await opened({ query: { keyterm: ["old"] } });
  socket.accept();
  stream.configure(["new", "newer"]);
  assert.deepEqual(JSON.parse(socket.sent[0]), { type: "Configure", keyterms: ["new", "newer"] });
  socket.end(1012);
  clock.advance(1);
  await turn();
  FakeSocket.all[1].accept();
  assert.deepEqual(FakeSocket.all[1].url.searchParams.getAll("keyterm"), ["old"], "a ticket is for one query");
  assert.deepEqual(JSON.parse(FakeSocket.all[1].sent[0]), { type: "Configure", keyterms: ["new", "newer"] });
});

const said = (socket) => socket.sent.filter((frame) => typeof frame === "string").map((text) => JSON.parse(text));

async function again(clock) {
  clock.advance(0.25);
  await turn();
  const socket = FakeSocket.all.at(-1);
  socket.accept();
  return socket;
}

test("what the agent said is sent again on the next connection as long as it counts", async () => {
  const { stream, clock, socket } = await opened();
  socket.accept();
  stream.addContext("Am I speaking to Mircea?");
  stream.send(ramp(0, 200));
  stream.addContext("to Zoltan");
  assert.deepEqual(said(socket)[0], { type: "Context", text: "Am I speaking to Mircea?" });
  socket.say({ type: "ContextSuccess", keyterms: ["mircea"] });
  socket.say(results(0, 1, { final: true }));
  socket.end(1006);
  const second = await again(clock);
  assert.deepEqual(said(second).map(({ text }) => text), ["mircea", "to Zoltan"]);
  second.say({ type: "ContextSuccess", keyterms: ["mircea"] });
  second.say({ type: "ContextSuccess", keyterms: ["mircea", "zoltan"] });
  stream.send(ramp(200, 3200));
  second.say(results(0, 31, { final: true }));
  second.end(1006);
  const third = await again(clock);
  assert.deepEqual(said(third), [], "30 s are over");
});

test("a rewind is sent once it can be answered, and reaches finals from before a lost connection", async () => {
  const { stream, clock, socket, of } = await opened({ rewind: 2 });
  assert.equal(socket.url.searchParams.get("rewind"), "2");
  socket.accept();
  stream.send(ramp(0, 500));
  for (const [start, duration] of [[0, 1.5], [1.5, 1], [2.5, 1.5]]) socket.say(results(start, duration, { final: true }));
  stream.rewind(2, ["Mircea"]);
  assert.deepEqual(said(socket), [{ type: "Rewind", seconds: 2, keyterms: ["Mircea"] }]);
  socket.end(1006);
  const second = await again(clock);
  assert.deepEqual(second.audio, range(150, 500), "from the end of a final");
  assert.deepEqual(said(second), said(socket));
  second.say(results(0, 2, { final: true }));
  second.say(results(2, 1.5, { final: true, text: "zero one two" }));
  second.say({ ...results(0, 2.5, { final: true, text: "Mircea" }), correction: true });
  const shown = of("Results").map(({ start, duration, transcript, correction }) => [start, duration, transcript, correction]);
  assert.deepEqual(shown.slice(3), [[4, 1, "zero one two", false], [1.5, 2.5, "Mircea", true]]);
  second.end(1006);
  assert.deepEqual(said(await again(clock)), [], "it was answered");
});

test("with a ticket another server continues exactly where it was made, and gets no audio before it has answered", async () => {
  const { stream, clock, socket, of } = await opened({ resumable: true });
  assert.equal(socket.url.searchParams.get("resumable"), "true");
  socket.accept();
  stream.send(ramp(0, 200));
  socket.say({ type: "Ticket", ticket: "old", audio_s: 0.8, finals: 0 });
  socket.say(results(0, 1, { final: true }));
  socket.say({ type: "Ticket", ticket: "new", audio_s: 1.6, finals: 1 });
  socket.say(results(1, 0.7));
  socket.end(1012);
  const second = await again(clock);
  assert.deepEqual(said(second), [{ type: "Resume", ticket: "new", finals: 1, cursor_s: 1.7 }]);
  assert.deepEqual(second.audio, [], "not before the answer");
  second.say({ type: "Resumed", audio_s: 1.6 });
  assert.deepEqual(second.audio, range(160, 200));
  assert.equal(of("open")[1].resumed, true);
  second.say(results(1, 1, { final: true }));
  assert.deepEqual(
    of("Results").map(({ start, isFinal }) => [start, isFinal]),
    [[0, true], [1, false], [1, true]],
    "in the time of the stream, which the server kept",
  );
});

test("a refused ticket is reported, and the audio since the last final is sent to the server that refused it", async () => {
  const { stream, clock, socket, of } = await opened({ resumable: true });
  socket.accept();
  stream.send(ramp(0, 200));
  socket.say(results(0, 1, { final: true }));
  socket.say({ type: "Ticket", ticket: "t", audio_s: 1.6, finals: 1 });
  socket.end(1006);
  const second = await again(clock);
  second.say({ type: "ResumeRefused", code: "TICKET_MODEL", description: "another model" });
  assert.equal(of("refused")[0].code, "TICKET_MODEL");
  assert.deepEqual(said(second)[1], { type: "Resume", from_s: 1, finals: 1 });
  second.say({ type: "Resumed", audio_s: 1 });
  assert.deepEqual(second.audio, range(100, 200));
  assert.deepEqual([of("open")[1].resumed, of("open")[1].replayedSeconds], [false, 1]);
});

test("a server that does not answer a ticket is abandoned", async () => {
  const { stream, clock, socket, of } = await opened({ resumable: true });
  socket.accept();
  stream.send(ramp(0, 200));
  socket.say({ type: "Ticket", ticket: "t", audio_s: 1.6, finals: 0 });
  socket.end(1006);
  const second = await again(clock);
  clock.advance(10);
  assert.equal(second.readyState, 3);
  assert.equal(of("waiting").length, 2);
});

test("a long replay is rate-limited, and live audio follows it in order", async () => {
  const { stream, clock, socket, of } = await opened();
  socket.accept();
  stream.send(ramp(0, 50));
  socket.end(1006);
  await turn();
  for (let at = 50; at < 3000; at += 50) stream.send(ramp(at, at + 50));
  const second = await again(clock);
  assert.ok(second.audio.length <= 300, "a burst of two seconds, and a message");
  clock.advance(1);
  stream.send(ramp(3000, 3050));
  assert.ok(second.audio.length > 900 && second.audio.length < 1200, `8 times real time: ${second.audio.length}`);
  clock.advance(3);
  assert.deepEqual(second.audio, range(0, 3050));
  stream.send(ramp(3050, 3100));
  assert.equal(second.audio.length, 3100, "live again");
});

test("replicas are tried in order", async () => {
  FakeSocket.all = [];
  const clock = new FakeClock();
  const fetch = async () => Promise.reject(new Error("refused"));
  const urls = ["ws://one/v1/listen", "ws://two/v1/listen"];
  new TuttiStream(urls, { WebSocket: FakeSocket, clock, fetch, sampleRate: RATE }).open();
  for (let tries = 0; tries < 3; tries++) {
    await turn();
    FakeSocket.all.at(-1).end(1006);
    await turn();
    clock.advance(1);
  }
  await turn();
  assert.deepEqual(FakeSocket.all.map(({ url }) => url.hostname), ["one", "two", "one", "two"]);
});

test("a stream with all audio sent and all answers received does not reconnect for its close", async () => {
  const { stream, socket, of } = await opened();
  socket.accept();
  stream.send(ramp(0, 100));
  const done = stream.close();
  socket.say(results(0, 1, { final: true }));
  socket.end(1006);
  await done;
  assert.equal(of("waiting").length, 0);
});

test("stored audio is bounded, and dropped when it is acknowledged", () => {
  const audio = new Unacknowledged(100);
  for (let at = 0; at < 150; at += 30) audio.push(ramp(at, at + 30), at);
  assert.deepEqual(audio.audio.flatMap((pcm) => [...pcm]), range(60, 150));
  assert.equal(audio.first, 60);
  const said = audio.say({ type: "Finalize" }, 0);
  audio.acknowledge(130);
  assert.deepEqual(audio.audio.flatMap((pcm) => [...pcm]), range(130, 150));
  assert.equal(audio.sentAt(150), 120);
  audio.acknowledge(1000, () => false);
  assert.deepEqual([audio.audio, audio.messages], [[], [said]]);
  audio.acknowledge(1000);
  assert.deepEqual([audio.messages, audio.sentAt(150)], [[], undefined]);
});

test("an abort ends the stream and its timers", async () => {
  const { stream, clock, socket, of } = await opened();
  socket.accept();
  assert.equal(clock.pending, 1, "to keep it alive");
  stream.abort();
  assert.equal(clock.pending, 0);
  assert.deepEqual([socket.sent, socket.readyState, of("ended").length], [[], 3, 1]);
});

test("floats become integers without wrapping, and silence has a level", () => {
  assert.deepEqual([...toInt16([0, 1, -1, 2, -2, 0.5, 1 / 32768])], [0, 32767, -32768, 32767, -32768, 16384, 1]);
  assert.equal(level(new Int16Array(10)), -90);
  assert.ok(Math.abs(level(Int16Array.of(32767, -32767))) < 0.01);
});

test("blocks of any size become whole messages, and the rest is kept", () => {
  const samples = Float32Array.from({ length: 700 }, (_, i) => i / 32768);
  for (const block of [1, 128, 333]) {
    const gatherer = new Gatherer(80);
    const messages = [];
    for (let at = 0; at < 700; at += block) messages.push(...gatherer.add(samples.subarray(at, at + block)));
    assert.ok(messages.every((message) => message.length === 80));
    assert.deepEqual([...messages, gatherer.rest()].flatMap((pcm) => [...pcm]), range(0, 700));
    assert.equal(gatherer.rest().length, 0);
  }
  const halved = new Gatherer(4, 2);
  assert.deepEqual([...halved.add([0, 0.5, 0.25, 0.25, 0, 0, 1, 1])].map((pcm) => [...pcm]), [[8192, 8192, 0, 32767]]);
});
