/**
 * A small client for tutti's live endpoint: one file, no dependency, for browsers and for node (given a WebSocket).
 *
 * It owns the socket, what was said and may have to be said again, and the wait before the next try. It knows nothing
 * of microphones and pages. Audio is mono, 16-bit; times are seconds of the whole stream, over all its connections.
 *
 *     const stream = new TuttiStream("ws://127.0.0.1:8080/v1/listen", { key, sampleRate: 16000, resumable: true });
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
const REPLAY_SPEED = 8; // times real time, beyond a burst that any server takes
const REPLAY_BURST_S = 2;
const SAME_S = 0.002; // servers round their times

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

/** What was said and may have to be said again: audio, with the time at which it was sent, and messages in between. */
export class Unacknowledged {
  #items = []; // { end, at, pcm } or { end, at, message, answered, ticketed }; `end` in samples of the stream
  #limit;
  #next = 0; // the item that goes next
  #from = 0; // the sample that this connection begins with
  first = 0; // the oldest sample that is held
  end = 0;

  constructor(limit) {
    this.#limit = limit;
  }

  push(pcm, at) {
    this.end += pcm.length;
    this.#items.push({ end: this.end, at, pcm });
    while (this.end - this.first > this.#limit) this.acknowledge(this.#items.find((item) => item.pcm).end);
  }

  /** Add a message. Returns: its item. */
  say(message, at) {
    const item = { end: this.end, at, message, answered: false, ticketed: false };
    this.#items.push(item);
    return item;
  }

  /** Forget everything before a sample; of the messages at it, those that are settled. */
  acknowledge(sample, settled = () => true) {
    this.first = Math.max(this.first, Math.min(sample, this.end));
    const over = (item) => item.end < this.first || (item.end === this.first && (item.pcm || settled(item)));
    while (this.#items.length && over(this.#items[0])) {
      this.#items.shift();
      this.#next = Math.max(0, this.#next - 1);
    }
    const [head] = this.#items;
    if (head?.pcm) head.pcm = head.pcm.subarray(Math.max(0, head.pcm.length - (head.end - this.first)));
  }

  /** When the message that holds the last sample before `sample` was sent, or undefined where that is forgotten. */
  sentAt(sample) {
    const cursor = Math.min(sample, this.end);
    return cursor <= this.first ? undefined : this.#items.find((item) => item.pcm && item.end >= cursor)?.at;
  }

  /** Go on with what reaches past a sample, or was said at it. */
  seek(sample) {
    this.#from = sample;
    const next = this.#items.findIndex((item) => (item.pcm ? item.end > sample : item.end >= sample));
    this.#next = next < 0 ? this.#items.length : next;
  }

  /** Returns: the next item to be sent, or undefined. */
  take() {
    const item = this.#items[this.#next];
    if (!item) return undefined;
    this.#next += 1;
    const early = item.pcm ? this.#from - (item.end - item.pcm.length) : 0;
    return early > 0 ? { ...item, pcm: item.pcm.subarray(early) } : item;
  }

  get messages() {
    return this.#items.filter((item) => item.message);
  }

  get audio() {
    return this.#items.flatMap((item) => item.pcm ?? []);
  }
}

/** One stream of audio over as many connections as it takes. */
export class TuttiStream {
  #urls;
  #options;
  #query;
  #clock;
  #audio;
  #listeners = new Map();
  #socket = null;
  #begun = null; // how this connection took the stream up: "new", "ticket" or "replay"; null until it is known
  #base = 0; // sample at which the server's time begins
  #baseFinals = 0;
  #ticket = null; // the newest: { ticket, sample }
  #finals = 0; // that have come, over all connections
  #settledAt = 0; // sample at which the last final ended
  #reached = 0; // sample that the furthest message reached
  #quiet = 0; // interims up to here have been told
  #told = {}; // the last time of each kind of event
  #lostUntil = 0; // what is missing before it has been told
  #pace = { at: 0, from: 0, until: 0 }; // when and where this connection began, and where it is live again
  #sent = 0; // sample
  #tries = 0; // since anything was settled
  #asked = []; // each Finalize without an answer
  #configured = []; // the messages that may hold at the place where the next connection begins
  #awaiting = []; // each Configure that this connection was sent
  #closing = null;
  #covered = false; // a final came for everything, after the end was said
  #timers = {};
  #spokeAt = 0;
  #metadata = null;
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
    if (this.#ended || this.#closing) throw new TuttiError("the stream is closed", { final: true });
    if (!pcm.length) return; // an empty message would end the stream
    this.#audio.push(pcm, this.#clock.now());
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
    this.#asked.push(this.#say({ type: "Finalize" }));
  }

  /** Replace the key terms for the audio that follows. */
  configure(keyterms) {
    this.#configured.push(this.#say({ type: "Configure", keyterms }));
  }

  /** Say that no audio follows, and wait for the last final. Returns: `done`. */
  close() {
    if (!this.#ended) this.#closing ??= this.#say({ type: "CloseStream" });
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
    return this.#isOpen && this.#begun && this.#sent >= this.#audio.end;
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
    this.#quiet = this.#reached;
    this.#awaiting = [];
    if (this.#ticket?.sample < this.#audio.first) this.#ticket = null; // what it needs is no longer held
    if (this.#ticket) {
      const { ticket } = this.#ticket;
      const cursor_s = Math.max(0, this.#reached - this.#base) / this.#options.sampleRate;
      this.#ask({ ticket, finals: this.#finals - this.#baseFinals, cursor_s });
    } else {
      this.#beginAnew();
    }
    this.#keepAlive();
  }

  #ask(fields) {
    this.#watch(HANDSHAKE_S, "the server does not take the stream up");
    this.#transmit(JSON.stringify({ type: "Resume", ...fields }));
  }

  /** The server's answer to a ticket, or to the question for a place; the rest is of a stream that has not heard us. */
  #answered(message) {
    if (message.type === "Resumed") {
      this.#begin(this.#base + this.#samples(message.audio_s), this.#ticket ? "ticket" : "replay");
    } else if (message.type === "ResumeRefused" && this.#ticket) {
      this.#emit("refused", message);
      [this.#ticket, this.#base, this.#baseFinals] = [null, 0, 0];
      this.#ask({ from_s: this.#place / this.#options.sampleRate, finals: this.#finals });
    } else if (message.type === "ResumeRefused" || message.type === "Error") {
      this.#ticket = null; // a server that knows no tickets
      this.#beginAnew();
    }
  }

  /** Where to begin without a ticket: at the end of the last final. */
  get #place() {
    return Math.max(this.#settledAt, this.#audio.first);
  }

  #beginAnew() {
    [this.#base, this.#baseFinals] = [this.#place, this.#finals];
    this.#begin(this.#place, this.#sent ? "replay" : "new");
  }

  #begin(sample, how) {
    this.#watch(null);
    this.#begun = how;
    const rate = this.#options.sampleRate;
    this.#pace = { at: this.#clock.now(), from: sample, until: this.#audio.end, heard: this.#reached / rate };
    this.#sent = sample;
    this.#audio.seek(sample);
    this.#emit("open", { replayedSeconds: (this.#audio.end - sample) / rate, resumed: how === "ticket" });
    const missing = how === "ticket" ? 0 : sample - Math.max(this.#settledAt, this.#lostUntil);
    this.#lostUntil = Math.max(this.#lostUntil, sample);
    if (missing > 0) this.#emit("lost", { seconds: missing / rate });
    if (how !== "ticket") this.#configured.filter(({ end }) => end <= sample).slice(-1).forEach((item) => this.#tell(item));
    this.#pump();
  }

  /** Send what there is, and what goes over the wire a second time no faster than a server likes. */
  #pump() {
    if (!this.#isOpen || !this.#begun || this.#timers.pace) return;
    for (;;) {
      const { at, from, until } = this.#pace;
      const early = (this.#sent - from) / this.#options.sampleRate - REPLAY_BURST_S;
      const wait = this.#sent < until ? early / REPLAY_SPEED - (this.#clock.now() - at) : 0;
      if (wait > 0) {
        this.#timers.pace = this.#clock.later(() => ((this.#timers.pace = undefined), this.#pump()), wait);
        return;
      }
      const item = this.#audio.take();
      if (!item) return;
      if (item.pcm) this.#transmit(item.pcm);
      else if (!(this.#begun === "ticket" ? item.ticketed : item.answered && item.message.type === "Finalize")) this.#tell(item);
      this.#sent = item.end;
    }
  }

  #tell(item) {
    if (item.message.type === "Configure") this.#awaiting.push(item);
    this.#transmit(JSON.stringify(item.message));
    if (item === this.#closing) this.#watch(ANSWER_S, "the server does not finish");
  }

  #heard(message) {
    if (!this.#begun) return void this.#answered(message);
    const shift = this.#base / this.#options.sampleRate;
    if (this.#closing) this.#watch(ANSWER_S, "the server does not finish");
    if (message.type === "Results") this.#result(message, shift);
    else if (message.type === "Metadata") this.#metadata = { ...message, duration: message.duration + shift };
    else if (message.type === "Ticket") this.#keep(message);
    else if (message.type === "SpeechStarted") this.#event(message, "timestamp", shift);
    else if (message.type === "UtteranceEnd") this.#event(message, "last_word_end", shift);
    else if (message.type.startsWith("Configure")) this.#configureAnswered(message);
    else this.#emit(message.type, message);
  }

  #samples(seconds) {
    return Math.round(seconds * this.#options.sampleRate);
  }

  #keep({ ticket, audio_s }) {
    const sample = this.#base + this.#samples(audio_s);
    if (sample < this.#audio.first) return;
    this.#ticket = { ticket, sample };
    for (const item of this.#audio.messages)
      item.ticketed ||= item.end < sample || (item.end === sample && item.answered);
    this.#tries = 0;
    this.#letGo();
  }

  /** Forget what can never be wanted again: what a final covers, and the newest ticket too. */
  #letGo() {
    const until = Math.min(this.#settledAt, this.#ticket?.sample ?? Infinity);
    const old = this.#configured.findLastIndex(({ end }) => end <= until);
    if (old > 0) this.#configured.splice(0, old);
    this.#audio.acknowledge(until, (item) => item.answered && (!this.#ticket || item.ticketed));
  }

  /** An event, unless it was told before: a server that hears audio again notices again what is in it. */
  #event(message, name, shift) {
    const time = message[name] + shift;
    const heard = name === "timestamp" && this.#begun === "replay" ? this.#pace.heard : -1;
    if (time <= Math.max(this.#told[name] ?? -1, heard) + SAME_S) return;
    this.#told[name] = time;
    this.#emit(message.type, { ...message, [name]: time });
  }

  #configureAnswered(message) {
    const item = this.#awaiting.shift();
    const told = item?.answered;
    if (item) item.answered = true;
    if (!told) this.#emit(message.type, message);
  }

  #result(message, shift) {
    const cursor = this.#base + this.#samples(message.start + message.duration);
    const same = this.#samples(SAME_S);
    const answers = message.is_final && message.from_finalize;
    const empty = message.is_final && !message.duration && !answers && !this.#closing; // of a drain in a silence
    const repeated = message.is_final
      ? this.#base + this.#samples(message.start) < this.#settledAt - same && cursor <= this.#settledAt + same
      : cursor <= this.#quiet + same;
    const told = this.#results(message, shift, cursor, answers ? this.#asked.shift() : null);
    this.#reached = Math.max(this.#reached, cursor);
    if (message.is_final) this.#finalCame(cursor, answers);
    else if (!repeated) this.#quiet = 0;
    if (!empty && !repeated) this.#emit("Results", told);
  }

  #finalCame(cursor, answers) {
    this.#finals += 1;
    if (cursor > this.#settledAt) this.#tries = 0;
    this.#settledAt = Math.max(this.#settledAt, Math.min(cursor, this.#audio.end));
    this.#covered ||= this.#closing && this.#isLive && !answers && cursor >= this.#audio.end - this.#samples(SAME_S);
    this.#letGo();
  }

  /** A `Results` frame in the stream's own time, with what it took: `latency` and `finalLatency` in seconds. */
  #results(message, shift, cursor, asked) {
    const now = this.#clock.now();
    const [best] = message.channel.alternatives;
    const sentAt = this.#audio.sentAt(cursor);
    if (asked) asked.answered = true;
    const askedAt = asked?.at ?? (message.is_final ? this.#closing?.at : null);
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
    if (opened && (code === NORMAL || this.#covered)) {
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
    this.#socket = this.#begun = null;
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

  #say(message) {
    const item = this.#audio.say(message, this.#clock.now());
    this.#pump();
    return item;
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
