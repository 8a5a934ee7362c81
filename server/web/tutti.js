/**
 * A small client for tutti's live endpoint, without dependencies, for browsers and node (given a WebSocket).
 *
 * Owns the socket, the clock and the retries; `continuity.js` decides what is sent again and which events are emitted.
 * Audio is 16-bit mono; times are seconds of the whole stream, over all its connections.
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
const PERMANENT = new Set([1002, 1003, 1007, 1008, 1009]); // close codes that the same audio would cause again
const FIRST_WAIT_S = 0.25;
const LONGEST_WAIT_S = 10;
const HANDSHAKE_S = 10;
const ANSWER_S = 20; // longest wait for an answer to CloseStream, and between messages after it
const KEEP_ALIVE_S = 4; // the server closes a stream after 10 s without a frame
const HELD_S = 300; // seconds of audio in memory: an utterance, and what kernel buffers hold in transit
const HIGH_WATER_BYTES = 2 ** 18;
const PROBE_S = 0.1; // seconds of silence
const REPLAY_SPEED = 8; // times real time, after a burst of REPLAY_BURST_S
const REPLAY_BURST_S = 2;

const REAL_CLOCK = {
  now: () => performance.now() / 1000,
  later: (call, seconds) => setTimeout(call, seconds * 1000),
  cancel: (timer) => clearTimeout(timer),
};

/** An error that ends or delays a stream. `status`: HTTP status of a refusal; `code`: close code of the WebSocket. */
export class TuttiError extends Error {
  constructor(message, { status = 0, code = 0, retryAfter = 0, final = false } = {}) {
    super(message);
    Object.assign(this, { name: "TuttiError", status, code, retryAfter, final });
  }
}

/** One stream of audio, over several connections if one is lost. */
export class TuttiStream {
  #urls;
  #options;
  #query;
  #clock;
  #stream;
  #listeners = new Map();
  #socket = null;
  #liveAt = 0; // time at which the server answered on this connection
  #tries = 0; // failed attempts since the last progress
  #progress = 0;
  #timers = {};
  #sentAt = 0;
  #ended = false;
  #settle;

  /**
   * `url`: one address, or those of several replicas, which are tried in order; `key`: an API key, or a function that
   * fetches one (short-lived tokens); `scheme`: "token", or "bearer" for tokens; `resumable`: request tickets, with
   * which another server continues exactly where the connection was lost; `rewind`: seconds of finals that `rewind` can
   * decode again, not with `resumable`; `query`: further parameters, arrays are repeated; `maxTries`: consecutive
   * connections without a final or a ticket.
   */
  constructor(url, options = {}) {
    this.#urls = [url].flat();
    this.#options = { scheme: "token", sampleRate: 16000, maxTries: 8, WebSocket: globalThis.WebSocket, ...options };
    this.#options.fetch ??= (...args) => globalThis.fetch(...args);
    const { resumable, rewind, query } = options;
    this.#query = { interim_results: true, resumable: resumable || undefined, rewind: rewind || undefined, ...query };
    this.#clock = options.clock ?? REAL_CLOCK;
    this.#stream = new Continuity(this.#options.sampleRate, HELD_S * this.#options.sampleRate, rewind);
    /** Settles when the stream has ended: { code, reason, metadata }, or a TuttiError. */
    this.done = new Promise((resolve, reject) => (this.#settle = { resolve, reject }));
    this.done.catch(() => {}); // errors are emitted as "failed" too
  }

  /** Call a listener on "open", "waiting", "refused" (a ticket), "lost", "ended", "failed", and each type of message. */
  on(type, listener) {
    this.#listeners.set(type, [...(this.#listeners.get(type) ?? []), listener]);
    return this;
  }

  /** Connect. Audio may be sent at once: it is kept until the connection is open. */
  open() {
    this.#connect();
    return this;
  }

  /** Send live samples (Int16Array), and keep them; never blocks: beyond HELD_S the oldest are dropped. */
  send(pcm) {
    if (this.#ended || this.#stream.closing) throw new TuttiError("the stream is closed", { final: true });
    if (!pcm.length) return; // an empty message would end the stream
    this.#stream.audio.push(pcm, this.#clock.now());
    this.#pump();
  }

  /** As `send`, but wait until the connection has room: for recorded audio, faster than real time. */
  async write(pcm) {
    while (!this.#ended && !(this.#isLive && this.#socket.bufferedAmount <= HIGH_WATER_BYTES))
      await new Promise((resolve) => this.#clock.later(resolve, 0.02)); // a WebSocket has no event for this
    this.send(pcm);
  }

  /** Request a final of all audio sent so far. */
  finalize() {
    this.#stream.finalize(this.#clock.now());
    this.#pump();
  }

  /** Replace the key terms for the audio that follows. */
  configure(keyterms) {
    this.#stream.configure(keyterms, this.#clock.now());
    this.#pump();
  }

  /** Favor the rare words of what another speaker said, for 30 s of audio, also after a lost connection. */
  addContext(text) {
    this.#stream.addContext(text, this.#clock.now());
    this.#pump();
  }

  /** Look for further key terms in the finals of the last seconds; answered by "Results" with `correction`. */
  rewind(seconds, keyterms = []) {
    this.#stream.rewind(seconds, keyterms, this.#clock.now());
    this.#pump();
  }

  /** Send CloseStream and wait for the last final. Returns: `done`. */
  close() {
    if (!this.#ended) {
      this.#stream.close(this.#clock.now());
      this.#pump();
    }
    return this.done;
  }

  /** Close at once, without the last results. */
  abort() {
    this.#end({ code: 1006, reason: "aborted" });
  }

  get #isOpen() {
    return this.#socket?.readyState === OPEN;
  }

  /** True if everything was sent. */
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
      socket.onmessage = ({ data }) => this.#received(JSON.parse(data));
      socket.onclose = ({ code, reason }) => this.#lost(code, reason, opened, secret);
      this.#watch(HANDSHAKE_S, "the server does not answer");
    } catch (error) {
      const bad = error.name === "SyntaxError"; // a subprotocol allows only letters, digits and a few signs
      const message = bad ? "the API key has invalid characters" : `no connection: ${error.message}`;
      this.#again(new TuttiError(message, { final: bad, status: bad ? 401 : 0 }));
    }
  }

  #opened() {
    this.#watch(null);
    this.#sentAt = this.#clock.now();
    this.#emitAll(this.#stream.connected());
    if (!this.#stream.begun) this.#watch(HANDSHAKE_S, "the server does not answer the Resume message");
    this.#pump();
    this.#keepAlive();
  }

  #received(message) {
    const begun = this.#stream.begun;
    this.#emitAll(this.#stream.receive(message, this.#clock.now()));
    if (!begun) this.#pump(); // an answer to Resume may require a message
    else if (this.#stream.closing) this.#watch(ANSWER_S, "the server does not finish");
    if (this.#stream.progress > this.#progress) this.#tries = 0;
    this.#progress = this.#stream.progress;
  }

  #emitAll(events) {
    for (const [type, detail] of events) {
      if (type === "open") {
        this.#watch(null);
        this.#liveAt = this.#clock.now();
      }
      this.#emit(type, detail);
    }
  }

  /** Send what is ready; audio from before the connection at most at REPLAY_SPEED. */
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
      this.#again(new TuttiError(message, { code, final: PERMANENT.has(code) }));
    } else {
      this.#again(await this.#refusal(secret));
    }
  }

  /** Find out why a handshake failed: browsers hide it, so POST PROBE_S of silence with the same query. */
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
    const wait = Math.max(error.retryAfter, longest * (0.5 + Math.random() / 2)); // jitter, so that clients spread out
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

  /** Detach from the connection; later messages from it are ignored. */
  #forget() {
    for (const timer of Object.values(this.#timers)) this.#clock.cancel(timer);
    this.#timers = {};
    if (this.#socket) this.#socket.onopen = this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket = null;
    this.#stream.lost();
  }

  /** Fail the connection with this error unless a message arrives in time; null: no limit. */
  #watch(seconds, problem) {
    this.#clock.cancel(this.#timers.watch);
    if (seconds === null) return;
    this.#timers.watch = this.#clock.later(() => {
      const socket = this.#socket;
      this.#forget();
      socket?.close();
      this.#again(new TuttiError(problem));
    }, seconds);
  }

  #keepAlive() {
    const wait = this.#sentAt + KEEP_ALIVE_S - this.#clock.now();
    if (wait <= 0) this.#transmit('{"type":"KeepAlive"}');
    this.#timers.keepAlive = this.#clock.later(() => this.#keepAlive(), wait > 0 ? wait : KEEP_ALIVE_S);
  }

  #transmit(frame) {
    if (!this.#isOpen) return;
    this.#sentAt = this.#clock.now();
    this.#socket.send(frame);
  }

  #emit(type, detail) {
    for (const listener of this.#listeners.get(type) ?? []) listener(detail);
  }
}
