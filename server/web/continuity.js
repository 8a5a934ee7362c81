/**
 * State of a stream over all its connections: what to send again after a loss, and which events were emitted.
 *
 * No socket and no clock. Positions are samples from the start of the stream. A server with tickets continues exactly
 * where the latest one was made; with any other the stream starts again at the end of the last final, and its times are
 * shifted.
 */

const SAME_S = 0.002; // servers round their times

/** Audio and messages that may have to be sent again, in order, each with the time at which it was sent. */
export class Unacknowledged {
  #items = []; // { end, at, pcm } or { end, at, message, … }; `end` in samples of the stream
  #limit;
  #next = 0; // index of the next item to send
  #from = 0; // first sample to send on this connection
  first = 0; // oldest sample in memory
  end = 0;

  constructor(limit) {
    this.#limit = limit;
  }

  push(pcm, at) {
    this.end += pcm.length;
    this.#items.push({ end: this.end, at, pcm });
    while (this.end - this.first > this.#limit) this.acknowledge(this.#items.find((item) => item.pcm).end);
  }

  /** Append a message. Returns: its item. */
  say(message, at) {
    // `number`: of the final that answered it; `here`: answered on this connection; `ticketed`: in the latest ticket
    const item = { end: this.end, at, message, answered: false, number: Infinity, here: false, ticketed: false };
    this.#items.push(item);
    return item;
  }

  /** Drop everything before a sample, and the messages at it for which `settled` returns true. */
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

  /** Time at which the last sample before `sample` was sent, or undefined if it is no longer in memory. */
  sentAt(sample) {
    const cursor = Math.min(sample, this.end);
    return cursor <= this.first ? undefined : this.#items.find((item) => item.pcm && item.end >= cursor)?.at;
  }

  /** Continue with audio that ends after a sample, and messages at or after it. */
  seek(sample) {
    this.#from = sample;
    const next = this.#items.findIndex((item) => (item.pcm ? item.end > sample : item.end >= sample));
    this.#next = next < 0 ? this.#items.length : next;
  }

  /** Returns: the next item to send, or undefined. */
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

/** A stream with its own time, independent of its connections. */
export class Continuity {
  audio;
  begun = null; // how the connection started: "new", "ticket" or "replay"; null until the server has answered
  from = 0; // the sample at which it started
  until = 0; // end of the audio from before the connection; live audio follows
  sent = 0;
  progress = 0; // samples covered by finals or tickets
  closing = null;
  metadata = null;
  #rate;
  #covered = false; // a final for all audio was received after CloseStream
  #base = 0; // the sample at which the server's time starts
  #baseFinals = 0;
  #high = 0; // end of the audio sent on any connection
  #finals = 0; // received over all connections
  #ticket = null; // the latest: { ticket, sample }
  #settled = 0; // end of the last final
  #reached = 0; // latest end of any result
  #reachedBefore = 0; // `#reached` at the start of this connection
  #quiet = 0; // interims up to this sample were already emitted
  #missing = 0; // lost audio before this sample was already reported
  #lastEvent = {}; // time of the last event of each kind
  #asked = []; // unanswered Finalize messages
  #configured = []; // Configure messages that may apply at the start of the next connection
  #awaiting = []; // unanswered Configure messages of this connection
  #urgent = []; // messages to send first

  constructor(rate, held) {
    this.#rate = rate;
    this.audio = new Unacknowledged(held);
  }

  finalize(at) {
    this.#asked.push(this.audio.say({ type: "Finalize" }, at));
  }

  configure(keyterms, at) {
    this.#configured.push(this.audio.say({ type: "Configure", keyterms }, at));
  }

  close(at) {
    this.closing ??= this.audio.say({ type: "CloseStream" }, at);
  }

  /** Start a new connection; `next` returns what to send on it. */
  connected() {
    this.#quiet = this.#reachedBefore = this.#reached;
    [this.#awaiting, this.#urgent] = [[], []];
    if (this.#ticket?.sample < this.audio.first) this.#dropTicket(); // the audio after it is no longer in memory
    if (!this.#ticket) return this.#beginAnew();
    const { ticket } = this.#ticket;
    const cursor_s = Math.max(0, this.#reached - this.#base) / this.#rate;
    this.#urgent.push({ type: "Resume", ticket, finals: this.#finals - this.#baseFinals, cursor_s });
    return [];
  }

  /** True if every final and answer was received, so that only the close can be missing. */
  get complete() {
    return this.#covered && this.audio.messages.every((item) => item.answered || item === this.closing);
  }

  lost() {
    this.begun = null;
    for (const item of this.audio.messages) item.here = false;
  }

  /** Returns: an item with `pcm` or a `message`, or undefined if nothing is ready. */
  next() {
    if (this.#urgent.length) return { message: this.#urgent.shift() };
    while (this.begun) {
      const item = this.audio.take();
      if (!item) return undefined;
      this.sent = item.end;
      this.#high = Math.max(this.#high, item.end);
      if (item.message && this.#isKnown(item)) continue;
      if (item.message?.type === "Configure") this.#awaiting.push(item);
      return item;
    }
    return undefined;
  }

  #isKnown(item) {
    return this.begun === "ticket" ? item.ticketed : item.answered && item.message.type === "Finalize";
  }

  /** Handle a message of the server. Returns: the events to emit, as a list of [type, detail]. */
  receive(message, now) {
    if (!this.begun) return this.#answered(message); // messages before the answer to Resume are ignored
    const shift = this.#base / this.#rate;
    switch (message.type) {
      case "Results":
        return this.#result(message, shift, now);
      case "Metadata":
        this.metadata = { ...message, duration: message.duration + shift };
        return [];
      case "Ticket":
        return this.#keep(message);
      case "SpeechStarted":
        return this.#event(message, "timestamp", shift);
      case "UtteranceEnd":
        return this.#event(message, "last_word_end", shift);
      case "ConfigureSuccess":
      case "ConfigureFailure":
        return this.#configureAnswered(message);
      default:
        return [[message.type, message]];
    }
  }

  #answered(message) {
    if (message.type === "Resumed")
      return this.#begin(this.#base + this.#samples(message.audio_s), this.#ticket ? "ticket" : "replay");
    if (message.type === "ResumeRefused" && this.#ticket) {
      this.#dropTicket();
      [this.#base, this.#baseFinals] = [0, 0];
      this.#urgent.push({ type: "Resume", from_s: this.#place / this.#rate, finals: this.#finals });
      return [["refused", message]];
    }
    if (message.type !== "ResumeRefused" && message.type !== "Error") return [];
    this.#dropTicket(); // the server does not support tickets
    return this.#beginAnew();
  }

  /** The sample at which to start without a ticket: the end of the last final. */
  get #place() {
    return Math.max(this.#settled, this.audio.first);
  }

  #beginAnew() {
    [this.#base, this.#baseFinals] = [this.#place, this.#finals];
    return this.#begin(this.#place, this.#high ? "replay" : "new");
  }

  #begin(sample, how) {
    [this.begun, this.from, this.sent, this.until] = [how, sample, sample, this.audio.end];
    this.audio.seek(sample);
    const events = [["open", { replayedSeconds: (this.audio.end - sample) / this.#rate, resumed: how === "ticket" }]];
    if (how === "ticket") return events;
    const lost = sample - Math.max(this.#settled, this.#missing);
    this.#missing = Math.max(this.#missing, sample);
    if (lost > 0) events.push(["lost", { seconds: lost / this.#rate }]);
    const holds = this.#configured.findLast(({ end }) => end <= sample);
    if (holds && !(holds.end === sample && this.audio.messages.includes(holds))) {
      this.#urgent.push(holds.message);
      this.#awaiting.push(holds);
    }
    return events;
  }

  #samples(seconds) {
    return Math.round(seconds * this.#rate);
  }

  #dropTicket() {
    this.#ticket = null;
    for (const item of this.audio.messages) item.ticketed = false;
  }

  #keep({ ticket, audio_s, finals }) {
    const sample = this.#base + this.#samples(audio_s);
    if (sample < this.audio.first) return [];
    if (sample <= this.from && this.begun !== "ticket") return []; // covers no audio, and possibly not the key terms
    this.#ticket = { ticket, sample };
    for (const item of this.audio.messages) {
      const known = item.message.type === "Configure" ? item.here : item.number <= this.#baseFinals + finals;
      item.ticketed ||= item.end < sample || (item.end === sample && known);
    }
    this.#letGo();
    return [];
  }

  /** Drop what is never sent again: audio and messages covered by both a final and the latest ticket. */
  #letGo() {
    const ticketed = this.#ticket?.sample ?? Infinity;
    this.progress = Math.max(this.progress, this.#settled, this.#ticket ? ticketed : 0);
    const until = Math.min(this.#settled, ticketed);
    const old = this.#configured.findLastIndex(({ end }) => end <= until);
    if (old > 0) this.#configured.splice(0, old);
    this.audio.acknowledge(until, (item) => item.answered && (!this.#ticket || item.ticketed));
  }

  /** Emit an event unless it was already emitted: in a replay the server detects the same events again. */
  #event(message, name, shift) {
    const time = message[name] + shift;
    const known = name === "timestamp" && this.begun === "replay" ? this.#reachedBefore / this.#rate : -1;
    if (time <= Math.max(this.#lastEvent[name] ?? -1, known) + SAME_S) return [];
    this.#lastEvent[name] = time;
    return [[message.type, { ...message, [name]: time }]];
  }

  #configureAnswered(message) {
    const item = this.#awaiting.shift();
    const repeated = item?.answered;
    if (item) item.answered = item.here = true;
    return repeated ? [] : [[message.type, message]];
  }

  #result(message, shift, now) {
    const cursor = this.#base + this.#samples(message.start + message.duration);
    const answers = message.is_final && message.from_finalize;
    const old = this.#isOld(message, cursor);
    const asked = answers ? this.#asked.shift() : null;
    if (asked) Object.assign(asked, { answered: true, number: this.#finals + 1 });
    const shown = this.#inOurTime(message, shift, cursor, asked, now);
    this.#reached = Math.max(this.#reached, cursor);
    if (message.is_final) this.#finalCame(cursor, answers);
    else if (!old) this.#quiet = 0;
    return old ? [] : [["Results", shown]];
  }

  /** True if a result repeats what was already emitted. */
  #isOld(message, cursor) {
    const same = this.#samples(SAME_S);
    if (!message.is_final) return cursor <= this.#quiet + same;
    if (!message.duration) return !message.from_finalize && !this.closing; // the empty final of a drain in silence
    return this.#base + this.#samples(message.start) < this.#settled - same && cursor <= this.#settled + same;
  }

  #finalCame(cursor, answers) {
    this.#finals += 1;
    this.#settled = Math.max(this.#settled, Math.min(cursor, this.audio.end));
    const everything = cursor >= this.audio.end - this.#samples(SAME_S) && this.sent >= this.audio.end;
    this.#covered ||= Boolean(this.closing) && everything && !answers;
    this.#letGo();
  }

  /** Returns: a `Results` frame with stream times, and its `latency` and `finalLatency` in seconds. */
  #inOurTime(message, shift, cursor, asked, now) {
    const [best] = message.channel.alternatives;
    const sentAt = this.audio.sentAt(cursor);
    const askedAt = asked?.at ?? (message.is_final ? this.closing?.at : null);
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
}
