/**
 * A small client for tutti's live endpoint: no dependency, for browsers and for node (given a WebSocket).
 *
 * It owns the socket, the clock and the wait before the next try; what is sent again and told once, `continuity.js`
 * knows. It knows nothing of microphones and pages. Audio is mono, 16-bit; times are seconds of the whole stream, over
 * all its connections.
 *
 *     const stream = new TuttiStream("ws://127.0.0.1:8080/v1/listen", { key, sampleRate: 16000, resumable: true });
 *     stream.on("Results", ({ transcript, isFinal }) => console.log(isFinal, transcript));
 *     stream.open();
 *     stream.send(int16Samples);
 *     await stream.close();
 */

import { Continuity } from "./continuity.js";

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
const REPLAY_SPEED = 8; // times real time, beyond a burst that any server takes
const REPLAY_BURST_S = 2;

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

/** One stream of audio over as many connections as it takes. */
export class TuttiStream {
  #urls;
  #options;
  #query;
  #clock;
  #stream;
  #listeners = new Map();
  #socket = null;
  #liveAt = 0; // when this connection took the stream up
  #tries = 0; // since anything was settled
  #progress = 0;
  #timers = {};
  #spokeAt = 0;
  #ended = false;
  #settle;

  /**
   * `url`: one, or several replicas' that are tried in turn; `key`: an API key, or a function that fetches one
   * (short-lived tokens); `scheme`: "token", or "bearer" for tokens; `resumable`: ask for tickets, with which another
   * server goes on exactly where one was lost; `query`: further parameters, arrays are repeated; `maxTries`:
   * connections in a row that settle nothing.
   */
  constructor(url, options = {}) {
    this.#urls = [url].flat();
    this.#options = { scheme: "token", sampleRate: 16000, maxTries: 8, WebSocket: globalThis.WebSocket, ...options };
    this.#options.fetch ??= (...args) => globalThis.fetch(...args);
    this.#query = { interim_results: true, resumable: options.resumable || undefined, ...options.query };
    this.#clock = options.clock ?? REAL_CLOCK;
    this.#stream = new Continuity(this.#options.sampleRate, HELD_S * this.#options.sampleRate);
    /** Settles when the stream is over: { code, reason, metadata }, or a TuttiError. */
    this.done = new Promise((resolve, reject) => (this.#settle = { resolve, reject }));
    this.done.catch(() => {}); // who does not wait for it hears "failed"
  }

  /** Call it for "open", "waiting", "refused" (a ticket), "lost", "ended", "failed", and each type of message. */
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
    if (this.#ended || this.#stream.closing) throw new TuttiError("the stream is closed", { final: true });
    if (!pcm.length) return; // an empty message would end the stream
    this.#stream.audio.push(pcm, this.#clock.now());
    this.#pump();
  }

  /** As `send`, once the connection has room: for audio that is there already, faster than it was spoken. */
  async write(pcm) {
    while (!this.#ended && !(this.#isLive && this.#socket.bufferedAmount <= HIGH_WATER_BYTES))
      await new Promise((resolve) => this.#clock.later(resolve, 0.02)); // a WebSocket has no event for this
    this.send(pcm);
  }

  /** Ask for a final of everything sent so far. */
  finalize() {
    this.#stream.finalize(this.#clock.now());
    this.#pump();
  }

  /** Replace the key terms for the audio that follows. */
  configure(keyterms) {
    this.#stream.configure(keyterms, this.#clock.now());
    this.#pump();
  }

  /** Say that no audio follows, and wait for the last final. Returns: `done`. */
  close() {
    if (!this.#ended) {
      this.#stream.close(this.#clock.now());
      this.#pump();
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

  /** Whether everything that was said has gone out. */
  get #isLive() {
    return this.#isOpen && this.#stream.begun && this.#stream.sent >= this.#stream.audio.end;
  }

  get #address() {
    const url = new URL(this.#urls[0]);
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
    this.#spokeAt = this.#clock.now();
    this.#tell(this.#stream.connected());
    if (!this.#stream.begun) this.#watch(HANDSHAKE_S, "the server does not take the stream up");
    this.#pump();
    this.#keepAlive();
  }

  #heard(message) {
    const taken = this.#stream.begun;
    this.#tell(this.#stream.receive(message, this.#clock.now()));
    if (!taken) this.#pump(); // an answer to a ticket calls for something to be said
    else if (this.#stream.closing) this.#watch(ANSWER_S, "the server does not finish");
    if (this.#stream.progress > this.#progress) this.#tries = 0;
    this.#progress = this.#stream.progress;
  }

  #tell(news) {
    for (const [type, detail] of news) {
      if (type === "open") {
        this.#watch(null);
        this.#liveAt = this.#clock.now();
      }
      this.#emit(type, detail);
    }
  }

  /** Send what there is; what was there before the connection no faster than a server likes. */
  #pump() {
    const stream = this.#stream;
    while (this.#isOpen && !this.#timers.pace) {
      const early = (stream.sent - stream.from) / this.#options.sampleRate - REPLAY_BURST_S;
      const wait = early / REPLAY_SPEED - (this.#clock.now() - this.#liveAt);
      if (stream.begun && stream.sent < stream.until && wait > 0) {
        this.#timers.pace = this.#clock.later(() => {
          this.#timers.pace = undefined;
          this.#pump();
        }, wait);
        return;
      }
      const item = stream.next();
      if (!item) return;
      this.#transmit(item.pcm ?? JSON.stringify(item.message));
      if (item.message?.type === "CloseStream") this.#watch(ANSWER_S, "the server does not finish");
    }
  }

  async #lost(code, reason, opened, secret) {
    this.#forget();
    if (this.#ended) return;
    if (opened && (code === NORMAL || this.#stream.complete)) {
      this.#end({ code, reason, metadata: this.#stream.metadata });
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
    url.searchParams.delete("resumable");
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
    this.#urls.push(this.#urls.shift());
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
    this.#stream.lost();
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
    if (wait <= 0) this.#transmit('{"type":"KeepAlive"}');
    this.#timers.keepAlive = this.#clock.later(() => this.#keepAlive(), wait > 0 ? wait : KEEP_ALIVE_S);
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
