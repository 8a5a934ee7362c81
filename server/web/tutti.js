/**
 * A small client for tutti's live endpoint: no dependency, for browsers and for node (given a WebSocket).
 *
 * Owns the socket, the clock and the wait before the next try; `continuity.js` decides what is sent again and which
 * events are emitted. Knows nothing of microphones and pages. Audio is mono, 16-bit; times are seconds of the whole
 * stream, over all its connections.
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
const FOR_GOOD = new Set([1002, 1003, 1007, 1008, 1009]); // close codes that the same audio would cause again
const FIRST_WAIT_S = 0.25;
const LONGEST_WAIT_S = 10;
const HANDSHAKE_S = 10;
const ANSWER_S = 20; // longest wait for an answer to CloseStream, and between messages after it
const KEEP_ALIVE_S = 4; // the server gives up after 10 s without a frame
const HELD_S = 300; // of audio held: an utterance, and what kernel buffers hold in transit
const HIGH_WATER_BYTES = 2 ** 18;
const PROBE_S = 0.1; // of silence
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
  #tries = 0; // failed tries since progress
  #progress = 0;
  #timers = {};
  #spokeAt = 0;
  #ended = false;
  #settle;

  /**
   * `url`: one, or several replicas' that are tried in turn; `key`: an API key, or a function that fetches one
   * (short-lived tokens); `scheme`: "token", or "bearer" for tokens; `resumable`: ask for tickets, with which another
   * server goes on exactly where one was lost; `query`: further parameters, arrays are repeated; `maxTries`:
   * consecutive connections without a final or a ticket.
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
    this.done.catch(() => {}); // errors are emitted as "failed" too
  }

  /** Call a listener on "open", "waiting", "refused" (a ticket), "lost", "ended", "failed", and each type of message. */
  on(type, listener) {
    this.#listeners.set(type, [...(this.#listeners.get(type) ?? []), listener]);
    return this;
  }

  /** Connect. Audio may be sent at once: it is held until the connection is open. */
  open() {
    this.#connect();
    return this;
  }

  /** Send live samples (Int16Array), which the stream keeps. Never refused; beyond HELD_S the oldest are dropped. */
  send(pcm) {
    if (this.#ended || this.#stream.closing) throw new TuttiError("the stream is closed", { final: true });
    if (!pcm.length) return; // an empty message would end the stream
    this.#stream.audio.push(pcm, this.#clock.now());
    this.#pump();
  }

  /** As `send`, once the connection has room: for recorded audio, faster than real time. */
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

  /** True if everything has been sent. */
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
    if (!taken) this.#pump(); // an answer to Resume may call for a message
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

  /** Send what is held; audio from before the connection at REPLAY_SPEED at most. */
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

  /** Find out why a handshake failed: browsers hide it, so send the same request as a POST of PROBE_S of silence. */
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
    const wait = Math.max(error.retryAfter, longest * (0.5 + Math.random() / 2)); // jitter, so that clients spread
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

  /** Fail the connection unless a message arrives within this time; null: no limit. */
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
