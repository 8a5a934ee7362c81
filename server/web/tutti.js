/**
 * A small client for tutti's live endpoint: one file, no dependency, for browsers and for node (given a WebSocket).
 *
 * It owns the socket, the audio that no final has acknowledged, and the wait before the next try. It knows nothing of
 * microphones and pages. Audio is mono, 16-bit; times are seconds of the whole stream, over all its connections.
 *
 *     const stream = new TuttiStream("ws://127.0.0.1:8080/v1/listen", { key, sampleRate: 16000 });
 *     stream.on("Results", ({ transcript, isFinal }) => console.log(isFinal, transcript));
 *     stream.open();
 *     stream.send(int16Samples);
 *     await stream.close();
 */

const OPEN = 1; // WebSocket.OPEN
const NORMAL = 1000;
const FOR_GOOD = new Set([1002, 1003, 1007, 1008, 1009]); // close codes that the same audio would meet again
const FIRST_WAIT_S = 0.25;
const LONGEST_WAIT_S = 10;
const HANDSHAKE_S = 10;
const ANSWER_S = 20; // to CloseStream, and between any two of its messages
const KEEP_ALIVE_S = 4; // the server gives up after 10 s without a frame
const HELD_S = 300; // of audio: an utterance, and what the kernel's buffers hold on the way
const HIGH_WATER_BYTES = 2 ** 18;
const PROBE_S = 0.1; // of silence

const REAL_CLOCK = {
  now: () => performance.now() / 1000,
  later: (call, seconds) => setTimeout(call, seconds * 1000),
  cancel: (timer) => clearTimeout(timer),
};

/** Why a stream cannot go on, or must wait. `status` is HTTP's where the server refused, `code` that of a close. */
export class TuttiError extends Error {
  constructor(message, { status = 0, code = 0, retryAfter = 0, final = false } = {}) {
    super(message);
    Object.assign(this, { name: "TuttiError", status, code, retryAfter, final });
  }
}

/** Audio that was handed over and not yet acknowledged, with the time at which each part of it was sent. */
export class Unacknowledged {
  #chunks = []; // { end, at, pcm }, `end` in samples of the stream
  #limit;
  first = 0; // sample that the next connection begins with
  end = 0;
  dropped = 0; // samples that were never acknowledged, since this was last read

  constructor(limit) {
    this.#limit = limit;
  }

  push(pcm, at) {
    this.end += pcm.length;
    this.#chunks.push({ end: this.end, at, pcm });
    while (this.end - this.first > this.#limit) {
      this.dropped += this.#chunks[0].end - this.first;
      this.acknowledge(this.#chunks[0].end);
    }
  }

  /** Forget everything before a sample. Returns: whether that was news. */
  acknowledge(sample) {
    const until = Math.min(sample, this.end);
    if (until <= this.first) return false;
    this.first = until;
    while (this.#chunks.length && this.#chunks[0].end <= until) this.#chunks.shift();
    const head = this.#chunks[0];
    if (head) head.pcm = head.pcm.subarray(Math.max(0, head.pcm.length - (head.end - until)));
    return true;
  }

  /** When the message that holds the last sample before `sample` was sent, or undefined where that is forgotten. */
  sentAt(sample) {
    const cursor = Math.min(sample, this.end);
    return cursor <= this.first ? undefined : this.#chunks.find((chunk) => chunk.end >= cursor)?.at;
  }

  *[Symbol.iterator]() {
    for (const chunk of this.#chunks) yield chunk.pcm;
  }
}

/** One stream of audio over as many connections as it takes. */
export class TuttiStream {
  #url;
  #options;
  #query;
  #clock;
  #audio;
  #listeners = new Map();
  #socket = null;
  #base = 0; // sample at which this connection's time begins
  #tries = 0; // since audio was last acknowledged
  #asked = []; // when each Finalize without an answer was sent
  #closingAt = null;
  #timers = {};
  #spokeAt = 0;
  #metadata = null;
  #ended = false;
  #settle;

  /**
   * `key`: an API key, or a function that fetches one (short-lived tokens); `scheme`: "token", or "bearer" for tokens;
   * `query`: further parameters, arrays are repeated; `maxTries`: connections in a row that acknowledge nothing.
   */
  constructor(url, options = {}) {
    this.#url = url;
    this.#options = { scheme: "token", sampleRate: 16000, maxTries: 8, WebSocket: globalThis.WebSocket, ...options };
    this.#options.fetch ??= (...args) => globalThis.fetch(...args);
    this.#query = { interim_results: true, ...options.query };
    this.#clock = options.clock ?? REAL_CLOCK;
    this.#audio = new Unacknowledged(HELD_S * this.#options.sampleRate);
    /** Settles when the stream is over: { code, reason, metadata }, or a TuttiError. */
    this.done = new Promise((resolve, reject) => (this.#settle = { resolve, reject }));
    this.done.catch(() => {}); // who does not wait for it hears "failed"
  }

  /** Call `listener` for "open", "waiting", "lost", "ended", "failed" and for each type of the server's messages. */
  on(type, listener) {
    this.#listeners.set(type, [...(this.#listeners.get(type) ?? []), listener]);
    return this;
  }

  /** Connect. Audio may be sent at once: it is held until the server is there. */
  open() {
    this.#connect();
    return this;
  }

  /** Send samples (Int16Array), which are the stream's from now on: live audio, never refused, at worst forgotten. */
  send(pcm) {
    if (this.#ended || this.#closingAt !== null) throw new TuttiError("the stream is closed", { final: true });
    if (!pcm.length) return; // an empty message would end the stream
    this.#audio.push(pcm, this.#clock.now());
    this.#transmit(pcm);
  }

  /** As `send`, once the connection has room: for audio that is there already, faster than it was spoken. */
  async write(pcm) {
    while (!this.#ended && !(this.#isOpen && this.#socket.bufferedAmount <= HIGH_WATER_BYTES))
      await new Promise((resolve) => this.#clock.later(resolve, 0.02)); // a WebSocket has no event for this
    this.send(pcm);
  }

  /** Ask for a final of everything sent so far. */
  finalize() {
    this.#asked.push(this.#clock.now());
    this.#say({ type: "Finalize" });
  }

  /** Replace the key terms for the audio that follows. */
  configure(keyterms) {
    this.#query.keyterm = keyterms;
    this.#say({ type: "Configure", keyterms });
  }

  /** Say that no audio follows, and wait for the last final. Returns: `done`. */
  close() {
    if (this.#closingAt === null && !this.#ended) {
      this.#closingAt = this.#clock.now();
      this.#sayClose();
    }
    return this.done;
  }

  /** Leave at once. */
  abort() {
    this.#end({ code: 1006, reason: "aborted" });
  }

  get #isOpen() {
    return this.#socket?.readyState === OPEN;
  }

  get #address() {
    const url = new URL(this.#url);
    const given = { encoding: "linear16", sample_rate: this.#options.sampleRate, ...this.#query };
    for (const [name, value] of Object.entries(given))
      for (const one of [value].flat()) if (one !== undefined && one !== null) url.searchParams.append(name, one);
    return url;
  }

  async #connect() {
    try {
      const { key, scheme, WebSocket } = this.#options;
      const secret = await (typeof key === "function" ? key() : key); // so nothing fails before `open` has returned
      if (this.#ended) return;
      const socket = new WebSocket(this.#address.href, secret ? [scheme, secret] : []);
      socket.binaryType = "arraybuffer";
      this.#socket = socket;
      let opened = false;
      socket.onopen = () => {
        opened = true;
        this.#opened();
      };
      socket.onmessage = ({ data }) => this.#heard(JSON.parse(data));
      socket.onclose = ({ code, reason }) => this.#lost(code, reason, opened, secret);
      this.#watch(HANDSHAKE_S, "the server does not answer");
    } catch (error) {
      const bad = error.name === "SyntaxError"; // a subprotocol is made of letters, digits and a few signs
      const message = bad ? "the API key has characters that cannot be sent" : `no connection: ${error.message}`;
      this.#again(new TuttiError(message, { final: bad, status: bad ? 401 : 0 }));
    }
  }

  #opened() {
    this.#watch(null);
    this.#base = this.#audio.first;
    this.#emit("open", { replayedSeconds: (this.#audio.end - this.#base) / this.#options.sampleRate });
    if (this.#audio.dropped) this.#emit("lost", { seconds: this.#audio.dropped / this.#options.sampleRate });
    this.#audio.dropped = 0;
    this.#spokeAt = this.#clock.now();
    for (const pcm of this.#audio) this.#transmit(pcm);
    for (const _ of this.#asked) this.#say({ type: "Finalize" });
    if (this.#closingAt === null) this.#keepAlive();
    else this.#sayClose();
  }

  #heard(message) {
    const shift = this.#base / this.#options.sampleRate;
    if (this.#closingAt !== null) this.#watch(ANSWER_S, "the server does not finish");
    if (message.type === "Results") this.#emit("Results", this.#results(message, shift));
    else if (message.type === "Metadata") this.#metadata = message;
    else if (message.type === "SpeechStarted")
      this.#emit(message.type, { ...message, timestamp: message.timestamp + shift });
    else if (message.type === "UtteranceEnd")
      this.#emit(message.type, { ...message, last_word_end: message.last_word_end + shift });
    else this.#emit(message.type, message);
  }

  /** A `Results` frame in the stream's own time, with what it took: `latency` and `finalLatency` in seconds. */
  #results(message, shift) {
    const now = this.#clock.now();
    const [best] = message.channel.alternatives;
    const cursor = this.#base + Math.round((message.start + message.duration) * this.#options.sampleRate);
    const sentAt = this.#audio.sentAt(cursor);
    const askedAt = message.from_finalize ? this.#asked.shift() : message.is_final ? this.#closingAt : null;
    if (message.is_final && this.#audio.acknowledge(cursor)) this.#tries = 0;
    return {
      transcript: best.transcript,
      confidence: best.confidence,
      words: best.words.map((word) => ({ ...word, start: word.start + shift, end: word.end + shift })),
      stableWords: message.is_final ? best.words.length : (message.tutti?.stable_words ?? 0),
      start: message.start + shift,
      duration: message.duration,
      isFinal: message.is_final,
      speechFinal: message.speech_final,
      fromFinalize: message.from_finalize,
      latency: sentAt === undefined ? undefined : now - sentAt,
      finalLatency: !message.is_final ? undefined : now - (askedAt ?? sentAt ?? now),
      message,
    };
  }

  async #lost(code, reason, opened, secret) {
    this.#forget();
    if (this.#ended) return;
    if (code === NORMAL && opened) {
      this.#end({ code, reason, metadata: this.#metadata });
    } else if (opened) {
      const message = reason || `the connection was lost (code ${code})`;
      this.#again(new TuttiError(message, { code, final: FOR_GOOD.has(code) }));
    } else {
      this.#again(await this.#refusal(secret));
    }
  }

  /** Why a handshake failed. A browser does not say, so ask the same by POST, with a moment of silence. */
  async #refusal(secret) {
    const url = this.#address;
    url.protocol = url.protocol.replace("ws", "http");
    const headers = secret ? { Authorization: `${this.#options.scheme} ${secret}` } : {};
    const body = new Int16Array(Math.round(PROBE_S * this.#options.sampleRate));
    try {
      const answer = await this.#options.fetch(url.href, { method: "POST", headers, body });
      const { err_msg: message = "" } = await answer.json().catch(() => ({}));
      if (answer.ok) return new TuttiError("the connection was refused");
      const { status } = answer;
      const final = status < 500 && status !== 408 && status !== 429;
      const retryAfter = Number(answer.headers.get("Retry-After")) || 0;
      return new TuttiError(message || `HTTP ${status}`, { status, retryAfter, final });
    } catch {
      return new TuttiError("the server cannot be reached");
    }
  }

  #again(error) {
    if (this.#ended) return;
    this.#tries += 1;
    if (error.final || this.#tries >= this.#options.maxTries) {
      this.#end(error);
      return;
    }
    const longest = Math.min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (this.#tries - 1));
    const wait = Math.max(error.retryAfter, longest * (0.5 + Math.random() / 2)); // clients must not come back as one
    this.#timers.retry = this.#clock.later(() => this.#connect(), wait);
    this.#emit("waiting", { error, seconds: wait, tries: this.#tries });
  }

  #end(outcome) {
    if (this.#ended) return;
    this.#ended = true;
    const socket = this.#socket;
    this.#forget();
    socket?.close();
    if (outcome instanceof TuttiError) {
      this.#settle.reject(outcome);
      this.#emit("failed", outcome);
    } else {
      this.#settle.resolve(outcome);
      this.#emit("ended", outcome);
    }
  }

  /** Let go of the connection: whatever it still says is not heard. */
  #forget() {
    for (const timer of Object.values(this.#timers)) this.#clock.cancel(timer);
    this.#timers = {};
    if (this.#socket) this.#socket.onopen = this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket = null;
  }

  /** Give the connection so long for its next sign of life; null: as long as it likes. */
  #watch(seconds, complaint) {
    this.#clock.cancel(this.#timers.watch);
    if (seconds === null) return;
    this.#timers.watch = this.#clock.later(() => {
      const socket = this.#socket;
      this.#forget();
      socket?.close();
      this.#again(new TuttiError(complaint));
    }, seconds);
  }

  #keepAlive() {
    const wait = this.#spokeAt + KEEP_ALIVE_S - this.#clock.now();
    if (wait <= 0) this.#say({ type: "KeepAlive" });
    this.#timers.keepAlive = this.#clock.later(() => this.#keepAlive(), wait > 0 ? wait : KEEP_ALIVE_S);
  }

  #sayClose() {
    if (!this.#isOpen) return;
    this.#watch(ANSWER_S, "the server does not finish");
    this.#say({ type: "CloseStream" });
  }

  #say(message) {
    this.#transmit(JSON.stringify(message));
  }

  #transmit(frame) {
    if (!this.#isOpen) return;
    this.#spokeAt = this.#clock.now();
    this.#socket.send(frame);
  }

  #emit(type, detail) {
    for (const listener of this.#listeners.get(type) ?? []) listener(detail);
  }
}
