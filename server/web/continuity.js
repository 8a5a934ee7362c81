/**
 * State of a stream over all its connections: what to send again after a loss, and which events were emitted.
 *
 * It knows no socket and no time. Positions are samples from the beginning of the stream. A server that gives tickets
 * goes on exactly where the newest one was made; with any other the stream begins again at the end of the last final,
 * and its times are shifted.
 */

const SAME_S = 0.002; // servers round their times

/** Audio and messages that may have to be sent again, in order, each with the time at which it was sent. */
export class Unacknowledged {
  #items = []; // { end, at, pcm } or { end, at, message, … }; `end` in samples of the stream
  #limit;
  #next = 0; // index of the next item to send
  #from = 0; // first sample of this connection
  first = 0; // oldest sample held
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
    // `number`: of the final that answered it; `here`: answered on this connection; `ticketed`: in the newest ticket
    const item = { end: this.end, at, message, answered: false, number: Infinity, here: false, ticketed: false };
    this.#items.push(item);
    return item;
  }

  /** Drop everything before a sample; of the messages at it, those for which `settled` is true. */
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

  /** Time at which the last sample before `sample` was sent, or undefined where it is no longer held. */
  sentAt(sample) {
    const cursor = Math.min(sample, this.end);
    return cursor <= this.first ? undefined : this.#items.find((item) => item.pcm && item.end >= cursor)?.at;
  }

  /** Continue with audio that reaches past a sample and messages at or after it. */
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

/** A stream in its own time, independent of its connections. */
export class Continuity {
  audio;
  begun = null; // how the connection began: "new", "ticket" or "replay"; null until the server has answered
  from = 0; // the sample at which it began
  until = 0; // end of the audio that was held before the connection; live audio follows
  sent = 0;
  progress = 0; // settled samples: grows with finals and tickets
  closing = null;
  metadata = null;
  #rate;
  #covered = false; // a final for all audio came after CloseStream
  #base = 0; // the sample at which the server's time begins
  #baseFinals = 0;
  #high = 0; // audio sent over any connection
  #finals = 0; // received over all connections
  #ticket = null; // the newest: { ticket, sample }
  #settled = 0; // end of the last final
  #reached = 0; // end of the furthest result
  #heard = 0; // `#reached` when this connection began
  #quiet = 0; // interims up to here were emitted before
  #missing = 0; // lost audio before this sample was reported
  #lastEvent = {}; // the last time of each kind of event
  #asked = []; // Finalize messages without an answer
  #configured = []; // Configure messages that may apply where the next connection begins
  #awaiting = []; // Configure messages sent on this connection and not answered
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

  /** Begin on a new connection; `next` returns what to send on it. */
  connected() {
    this.#quiet = this.#heard = this.#reached;
    [this.#awaiting, this.#urgent] = [[], []];
    if (this.#ticket?.sample < this.audio.first) this.#dropTicket(); // the audio after it is no longer held
    if (!this.#ticket) return this.#beginAnew();
    const { ticket } = this.#ticket;
    const cursor_s = Math.max(0, this.#reached - this.#base) / this.#rate;
    this.#urgent.push({ type: "Resume", ticket, finals: this.#finals - this.#baseFinals, cursor_s });
    return [];
  }

  /** True if every final and answer has come, so that only the end of the stream can have been lost. */
  get complete() {
    return this.#covered && this.audio.messages.every((item) => item.answered || item === this.closing);
  }

  lost() {
    this.begun = null;
    for (const item of this.audio.messages) item.here = false;
  }

  /** Returns: an item with `pcm` or a `message`, or undefined where there is nothing yet. */
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

  /** Take a message of the server. Returns: the events to emit, as a list of [type, detail]. */
  receive(message, now) {
    if (!this.begun) return this.#answered(message); // other messages precede the server's answer to Resume
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

  /** The sample at which to begin without a ticket: the end of the last final. */
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
    if (sample <= this.from && this.begun !== "ticket") return []; // holds no audio, and perhaps not the key terms
    this.#ticket = { ticket, sample };
    for (const item of this.audio.messages) {
      const known = item.message.type === "Configure" ? item.here : item.number <= this.#baseFinals + finals;
      item.ticketed ||= item.end < sample || (item.end === sample && known);
    }
    this.#letGo();
    return [];
  }

  /** Drop what is never sent again: audio and messages that both a final and the newest ticket cover. */
  #letGo() {
    const ticketed = this.#ticket?.sample ?? Infinity;
    this.progress = Math.max(this.progress, this.#settled, this.#ticket ? ticketed : 0);
    const until = Math.min(this.#settled, ticketed);
    const old = this.#configured.findLastIndex(({ end }) => end <= until);
    if (old > 0) this.#configured.splice(0, old);
    this.audio.acknowledge(until, (item) => item.answered && (!this.#ticket || item.ticketed));
  }

  /** Emit an event unless it was emitted before: a server that gets audio again detects the same events again. */
  #event(message, name, shift) {
    const time = message[name] + shift;
    const heard = name === "timestamp" && this.begun === "replay" ? this.#heard / this.#rate : -1;
    if (time <= Math.max(this.#lastEvent[name] ?? -1, heard) + SAME_S) return [];
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

  /** True if a result repeats what was emitted before. */
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

  /** A `Results` frame in the stream's own time, with its `latency` and `finalLatency` in seconds. */
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
