// continuity.js with a deterministic server and cuts at every position: the caller sees one uninterrupted stream.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Continuity } from "../../server/web/continuity.js";

const RATE = 100;
const STEP = 8; // samples: one word, made of them and of the key terms; some words end an utterance

/** Random numbers that are the same in every run. */
function random(seed) {
  let state = seed * 2654435761 + 1;
  return (below) => {
    state = (Math.imul(state ^ (state >>> 15), 2246822519) + 0x9e3779b9) >>> 0;
    return ((state ^ (state >>> 13)) >>> 0) % below;
  };
}

const REWIND_S = 3;

const fresh = (received, finals) => ({ received, start: received, words: [], finals, keyterms: "", context: [] });

class FakeServer {
  constructor(keys) {
    this.keys = keys;
    this.state = fresh(0, 0);
    this.rest = [];
    this.steps = 0;
    this.known = { finals: 0, cursor: -1 };
    this.late = []; // a ticket that waits for the model: answers that need no step come before it
    this.said = []; // finals of this connection
  }

  hear({ pcm, message }) {
    if (pcm) return this.#audio([...pcm]);
    switch (message.type) {
      case "Finalize":
        return [...this.late.splice(0), ...this.#flush(true)];
      case "Context": {
        const terms = message.text.split(" ");
        this.state.context = [...this.state.context.filter((term) => !terms.includes(term)), ...terms];
        return [{ type: "ContextSuccess", keyterms: this.state.context }];
      }
      case "Rewind":
        return [this.#correction((this.state.received + this.rest.length) / RATE - message.seconds)];
      case "Configure":
        this.state.keyterms = message.keyterms.join();
        return [{ type: "ConfigureSuccess", keyterms: message.keyterms }];
      case "CloseStream":
        this.closed = true;
        return [...this.late.splice(0), ...this.#flush(false), { type: "Metadata", duration: this.state.received / RATE }];
      case "Resume":
        return [this.keys.length ? this.#resume(message) : { type: "Error", description: "unknown" }];
    }
  }

  #audio(samples) {
    this.rest.push(...samples);
    const frames = this.late.splice(0);
    while (this.rest.length >= STEP) {
      const word = this.#word(this.rest.splice(0, STEP));
      if (word % 7 === 0) frames.push(...this.#final(false));
      else frames.push(...this.#said(false, false));
      if (this.keys.length && ++this.steps % 5 === 0) {
        frames.push(...this.late.splice(0));
        this.late.push(this.ticket());
      }
    }
    return frames;
  }

  #word(samples) {
    const text = samples.join() + this.state.keyterms + this.state.context.join();
    const word = [...text].reduce((sum, sign) => (sum * 31 + sign.charCodeAt(0)) % 9973, 7);
    this.state.words.push(word);
    this.state.received += samples.length;
    return word;
  }

  #flush(fromFinalize) {
    if (this.rest.length) this.#word(this.rest.splice(0));
    return this.#final(fromFinalize);
  }

  #final(fromFinalize) {
    const frames = this.#said(true, fromFinalize);
    this.said.push({ words: this.state.words, start: this.state.start / RATE, end: this.state.received / RATE });
    Object.assign(this.state, { start: this.state.received, words: [], finals: this.state.finals + 1 });
    return this.state.finals > this.known.finals ? frames : [];
  }

  #said(is_final, from_finalize) {
    const { start, received, words } = this.state;
    if (!is_final && received / RATE <= this.known.cursor + 1e-6) return [];
    const alternatives = [{ transcript: words.join(" "), confidence: 0.5, words: [] }];
    const times = { start: start / RATE, duration: (received - start) / RATE };
    return [{ type: "Results", ...times, is_final, from_finalize, speech_final: is_final, channel: { alternatives } }];
  }

  /** The finals that end in the last seconds, of which this connection knows. */
  #correction(since) {
    const found = this.said.filter(({ end }) => end > since);
    const end = this.said.at(-1)?.end ?? 0;
    const start = found[0]?.start ?? end;
    const alternatives = [{ transcript: found.flatMap(({ words }) => words).join(" "), confidence: 0.5, words: [] }];
    return { type: "Results", start, duration: end - start, is_final: true, correction: true, channel: { alternatives } };
  }

  ticket() {
    const ticket = JSON.stringify([this.keys[0], this.state]);
    return { type: "Ticket", ticket, audio_s: this.state.received / RATE, finals: this.state.finals };
  }

  #resume({ ticket, from_s, finals, cursor_s = -1 }) {
    const [key, state] = ticket ? JSON.parse(ticket) : [this.keys[0], fresh(Math.round(from_s * RATE), finals)];
    if (!this.keys.includes(key)) return { type: "ResumeRefused", code: "TICKET_FORGED" };
    this.state = state;
    this.known = { finals, cursor: cursor_s };
    return { type: "Resumed", audio_s: state.received / RATE };
  }
}

class Link {
  constructor(servers, rewind) {
    Object.assign(this, { stream: new Continuity(RATE, 1e6, rewind), servers, count: 0, received: [], script: [], over: false });
    this.connect();
  }

  connect() {
    [this.up, this.down] = [[], []];
    this.server = new FakeServer(this.servers[this.count++ % this.servers.length]);
    this.received.push(...this.stream.connected());
  }

  move(kind, n, next) {
    if (kind === "say") {
      const pcm = Int16Array.from({ length: n + 1 }, () => next(1000));
      this.script.push({ pcm });
      this.stream.audio.push(pcm, 0);
    } else if (kind === "finalize") {
      this.script.push({ message: { type: "Finalize" } });
      this.stream.finalize(0);
    } else if (kind === "configure") {
      const keyterms = [`term ${n}`];
      this.script.push({ message: { type: "Configure", keyterms } });
      this.stream.configure(keyterms, 0);
    } else if (kind === "addContext") {
      const text = ["a", "b c", "d"][n % 3];
      this.script.push({ message: { type: "Context", text } });
      this.stream.addContext(text, 0);
    } else if (kind === "rewind") {
      this.script.push({ message: { type: "Rewind", seconds: REWIND_S } });
      this.stream.rewind(REWIND_S, [], 0);
    } else if (kind === "send") {
      for (let item; n-- >= 0 && (item = this.stream.next()); ) this.up.push(item);
    } else if (kind === "arrive") {
      for (const item of this.up.splice(0, n + 1)) this.down.push(...this.server.hear(item));
    } else if (kind === "tell") {
      for (const message of this.down.splice(0, n + 1))
        this.received.push(...this.stream.receive(JSON.parse(JSON.stringify(message)), 0));
      this.over ||= Boolean(this.server.closed) && !this.down.length;
    } else {
      if (kind === "drain" && this.server.keys.length && !this.server.closed) {
        this.down.push(...this.server.late.splice(0), this.server.ticket());
        this.move("tell", 1e6);
      }
      this.stream.lost();
      if (this.stream.complete) this.over = true;
      else this.connect();
    }
  }
}

const MOVES = ["say", "say", "finalize", "configure", "send", "send", "arrive", "arrive", "tell", "tell", "cut", "drain"];

function play(seed, servers, { more = [], longest = 120, rewind = 0 } = {}) {
  const next = random(seed);
  const link = new Link(servers, rewind);
  const kinds = [...MOVES, ...more];
  for (let moves = next(longest); moves > 0; moves--) {
    const kind = kinds[next(kinds.length)];
    link.move(kind, next(kind === "say" ? 40 : 9), next);
  }
  link.script.push({ message: { type: "CloseStream" } });
  link.stream.close(0);
  for (let moves = next(40); moves > 0 && !link.over; moves--) link.move(MOVES[4 + next(8)], next(9), next);
  for (let turn = 0; !link.over; turn++) {
    assert.ok(turn < 10000, "the stream does not end");
    for (const kind of ["send", "arrive", "tell"]) link.move(kind, 5, next);
  }
  return link;
}

/** Finals in the time of the stream; the empty one of a close may go with a cut. */
function finals(list) {
  const rows = list.map((m) => [m.start, m.start + m.duration, m.transcript, m.fromFinalize]);
  const shown = rows.map(([start, end, ...rest]) => [start.toFixed(2), end.toFixed(2), ...rest]);
  const last = shown.at(-1);
  return last && last[0] === last[1] && !last[3] ? shown.slice(0, -1) : shown;
}

function undisturbed(script) {
  const server = new FakeServer([]);
  const frames = script.flatMap((item) => server.hear(item)).filter((m) => m.is_final && !m.correction);
  return finals(frames.map((m) => ({ ...m, transcript: m.channel.alternatives[0].transcript, fromFinalize: m.from_finalize })));
}

/** Check that the caller has the finals of one connection, each interim once, and each answer once. */
function check(link, seed) {
  const results = link.received.filter(([type]) => type === "Results").map(([, detail]) => detail);
  const received = results.filter(({ correction }) => !correction);
  assert.deepEqual(finals(received.filter((m) => m.isFinal)), undisturbed(link.script), `seed ${seed}`);
  let [reached, ended] = [0, 0];
  for (const { isFinal, start, duration } of received) {
    assert.ok(Math.abs(start - ended) < 1e-6, `seed ${seed}: a gap, or a repetition`);
    if (!isFinal) assert.ok(start + duration > reached + 1e-6, `seed ${seed}: an interim was delivered twice`);
    reached = Math.max(reached, start + duration);
    if (isFinal) ended = start + duration;
  }
  const asked = (kind) => link.script.filter(({ message }) => message?.type === kind).length;
  const count = (kind) => link.received.filter(([type]) => type === kind).length;
  assert.equal(count("ConfigureSuccess"), asked("Configure"), `seed ${seed}`);
  assert.equal(count("ContextSuccess"), asked("Context"), `seed ${seed}`);
  assert.equal(results.length - received.length, asked("Rewind"), `seed ${seed}`);
  assert.ok(!link.received.some(([type]) => type === "lost"), `seed ${seed}`);
}

const SERVERS = {
  "with tickets": [["k"]],
  "without tickets": [[]],
  "with keys that change": [["k"], ["new", "k"], ["other"], [], ["k", "new"]],
};

for (const [name, servers] of Object.entries(SERVERS)) {
  test(`whatever is cut when, the caller sees one undisturbed stream: ${name}`, () => {
    for (let seed = 1; seed <= 1500; seed++) check(play(seed, servers), seed);
  });

  test(`what another speaker said counts as on one connection: ${name}`, () => {
    // at most 20 s, since a replay without a ticket extends it
    for (let seed = 1; seed <= 1500; seed++) check(play(seed, servers, { more: ["addContext"], longest: 50 }), seed);
  });
}

test("a rewind after cuts reaches as far back as on one connection", () => {
  for (let seed = 1; seed <= 1500; seed++) {
    const link = play(seed, [[]], { more: ["rewind", "say"], rewind: REWIND_S });
    check(link, seed);
    let samples = 0;
    const due = [];
    for (const { pcm, message } of link.script) {
      samples += pcm?.length ?? 0;
      if (message?.type === "Rewind") due.push(samples / RATE - REWIND_S);
    }
    const said = [];
    for (const [, detail] of link.received.filter(([type, detail]) => type === "Results" && detail.isFinal)) {
      if (!detail.correction) said.push(detail);
      else {
        const since = due.shift();
        const wanted = said.filter(({ start, duration }) => start + duration > since + 1e-6);
        const text = wanted.map(({ transcript }) => transcript).filter(Boolean).join(" ");
        assert.ok(detail.transcript.endsWith(text), `seed ${seed}`);
      }
    }
  }
});
